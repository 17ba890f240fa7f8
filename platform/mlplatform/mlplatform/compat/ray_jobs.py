"""The gateway as the Jobs API of the code of a job, and the end of a job as recorded first; seen in Ray 2.60.0.

An attempt has the gateway's address in RAY_API_SERVER_ADDRESS and its own token in RAY_JOB_HEADERS. Ray's command line
reads both; `JobSubmissionClient` reads the first only. Ray's state API reads the first, too, and asks for what the
gateway shows to administrators only, so it keeps asking the head. Imported when Python starts (`mlplatform.pth`), so it
imports nothing else, and changes Ray when the script imports it.
"""

from __future__ import annotations

import os

from mlplatform.compat.patches import AfterImport, around

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

HEADERS, OF_ATTEMPT = "RAY_JOB_HEADERS", "MLPLATFORM_ATTEMPT_TOKEN"


def _add_headers(sdk: Any) -> None:
    """Let `JobSubmissionClient` send the headers of the environment, unless it is given others."""
    import json

    @around(sdk.JobSubmissionClient, "__init__")
    def connect_as_attempt(connect: Any, self: Any, *args: Any, **options: Any) -> None:
        given = len(args) > 4 or options.get("headers") is not None  # address, create, cookies, metadata, headers
        if not given and OF_ATTEMPT in os.environ and os.environ.get(HEADERS):
            options["headers"] = json.loads(os.environ[HEADERS])
        connect(self, *args, **options)


def _ask_head(api: Any) -> None:
    """Let the state API find the head as it does without RAY_API_SERVER_ADDRESS."""

    @around(api, "get_address_for_submission_client")
    def address_of_head(address_for: Any, address: str | None) -> str:
        if OF_ATTEMPT not in os.environ:
            return str(address_for(address))
        from ray.dashboard.utils import ray_address_to_api_server_url

        own = os.environ.get("RAY_ADDRESS", "")
        address = address if not own or own.startswith("http") else own  # over HTTP, it is the gateway's
        return address if address and "://" in address else str(ray_address_to_api_server_url(address))


def _keep_ends(common: Any) -> None:
    """Let the end of a job stay as it was recorded first.

    With its first request for a log or a stop, a node's agent begins to monitor all open jobs. One that failed within
    the next second was then recorded as JOB_SUPERVISOR_ACTOR_START_FAILURE, without its exit code, and so restarted:
    `JobManager._monitor_job_internal` misses its supervisor, and does not look whether the job has ended.
    """

    @around(common.JobInfoStorageClient, "put_status")
    async def put_status(put: Any, self: Any, job_id: str, *args: Any, **options: Any) -> None:
        before = await self.get_status(job_id)
        if before is None or not before.is_terminal():
            await put(self, job_id, *args, **options)


def add_job_metadata(known: Mapping[str, str]) -> None:
    """Add metadata to each job that this process submits, unless its submitter sets the same keys.

    The hook of `ray job submit` gets neither the client, which does not exist yet, nor, without `--metadata-json`,
    anything that metadata could be put into (`ray/dashboard/modules/job/cli.py`). So the client's one method for
    submitting gets a default; the process ends after this submission.
    """
    from ray.job_submission import JobSubmissionClient

    @around(JobSubmissionClient, "submit_job")
    def submit_job(submit: Any, self: Any, *, metadata: dict[str, str] | None = None, **options: Any) -> Any:
        return submit(self, metadata={**known, **(metadata or {})}, **options)


AfterImport(
    {
        "ray.dashboard.modules.job.sdk": _add_headers,
        "ray.util.state.api": _ask_head,
        "ray.dashboard.modules.job.common": _keep_ends,
    }
)
