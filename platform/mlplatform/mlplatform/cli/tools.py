"""Tools of `mlplatform mcp`, which return what commands print with `--json`."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from mlplatform.api.jobs import ID, Job
from mlplatform.api.results import Results
from mlplatform.cli import output
from mlplatform.cli import queue as queue_command
from mlplatform.cli import usage as usage_command
from mlplatform.client import job_file
from mlplatform.client.connection import Connection
from mlplatform.client.follow import last_state
from mlplatform.client.jobs import Jobs
from mlplatform.errors import PlatformError
from mlplatform.text.terminal import printable

_LINES, _CHARACTERS = 1000, 50_000
"""Lines and characters of a log at most: an agent reads all of them."""

_POINTS = 20
"""Points of a curve at most."""

_JobId = Annotated[str, Field(description="Id of the job.", pattern=ID)]


def serve() -> None:
    """Serve the tools over stdin and stdout until the client closes them."""
    server = MCPServer("mlplatform", instructions="Jobs of a machine learning platform: submit and observe them.")
    server.add_tool(_explained(submit))
    for tool in (status, why, logs, metrics, queue, usage):
        server.add_tool(_explained(tool), annotations=ToolAnnotations(read_only_hint=True))
    server.run()


def _explained(tool: Callable[..., Any]) -> Callable[..., Any]:
    """Return a tool whose errors reach the agent with their sentence; the package hides those of other classes."""

    @wraps(tool)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return tool(*arguments, **options)
        except PlatformError as error:
            raise ToolError(str(error)) from error

    return call


def submit(
    path: Annotated[str, Field(description="Absolute path of a Python file, or of a folder with a job.toml.")],
    arguments: Annotated[list[str] | None, Field(description="Arguments of the script.")] = None,
    options: Annotated[job_file.JobFile | None, Field(description="Options, before those of the job.toml.")] = None,
) -> dict[str, Any]:
    """Upload a file with its folder, or a folder, and run it as a job; return the job at once, while it waits or runs.

    A job that no node can ever run is rejected before the upload.
    """
    given = {} if options is None else options.model_dump(exclude_unset=True, exclude_none=True, by_alias=True)
    job = job_file.submission(Path(path), arguments or (), **given)
    with Jobs() as client:
        return _shown(client.get(job_file.submit(client, job)))


def status(job_id: _JobId) -> dict[str, Any]:
    """Return a job with its status, message and attempts."""
    with Jobs() as client:
        return _shown(client.with_attempts(job_id))


def why(job_id: _JobId) -> dict[str, Any]:
    """Explain why a job waits, with its place in the queue, or why a running one was asked to leave."""
    return output.fields(queue_command.explain(job_id))


def logs(
    job_id: _JobId, lines: Annotated[int, Field(description="Number of last lines.", ge=1, le=_LINES)] = 100
) -> str:
    """Return the last lines that a job has printed."""
    with Jobs() as client:
        last = client.logs(job_id).removesuffix("\n").split("\n")[-lines:]
    return printable("\n".join(map(last_state, last)))[-_CHARACTERS:]


def metrics(job_id: _JobId) -> dict[str, Any]:
    """Return the runs of a job at MLflow with their metrics and models, and its checkpoints; curves are thinned."""
    found = output.read(Results, "GET", f"/platform/jobs/{job_id}/results", job_id=job_id)
    for curve in (curve for run in found.runs for curve in run.metrics.values()):
        step = -(-len(curve.steps) // _POINTS) or 1
        # From the end, which has the latest value.
        curve.steps, curve.values = curve.steps[::-step][::-1], curve.values[::-step][::-1]
    return output.fields(found)


def queue() -> dict[str, Any]:
    """Return the jobs that wait for resources in their order, with the reasons."""
    return output.fields(queue_command.read_queue())


def usage(
    by: Annotated[usage_command.By, Field(description="Groups of the sums.")] = "person",
    since: Annotated[str, Field(description="A time span such as 30d, or a date such as 2026-11-01.")] = "30d",
) -> dict[str, Any]:
    """Return the GPU and CPU seconds that people, teams or jobs have reserved, and the budgets of teams."""
    with Connection() as link:
        found, budgets = usage_command.read_usage(link, by, usage_command.moment(since, time.time()), None)
        return {"entries": [output.fields(use) for use in found], "budgets": budgets}


def _shown(job: Job) -> dict[str, Any]:
    """Return a job without its runtime environment: values of variables may be secrets."""
    return {name: value for name, value in output.fields(job).items() if name != "runtime_env"}
