"""MLflow runs that are still RUNNING although their job has ended."""

from __future__ import annotations

import time
from collections.abc import Iterator

from mlplatform.client.connection import Connection
from mlplatform.contract import TAG_JOB
from mlplatform.errors import UnreachableError
from mlplatform.mlflow_rest import MlflowRest, account_in
from mlplatform.stack import env
from mlplatform.stack.checks.finding import Finding, Place

_ENDED = ("SUCCEEDED", "FAILED", "STOPPED")

_GRACE_SECONDS = 300
"""The gateway ends the runs of a job within seconds of its end, and later only while MLflow is unavailable."""

_PAGE = 1000

_EXPERIMENTS = 500
"""Experiments per search of runs."""


def hanging(place: Place) -> Iterator[Finding]:
    """Yield each open run whose job ended more than five minutes ago; none while Ray or MLflow does not run."""
    client = env.client_settings(place.root)
    account = place.root / "secrets" / "mlflow_person"
    if not account.is_file() or not (place.root / "secrets" / "ray_token").is_file() or not client.tracking_uri:
        return
    connection = Connection(client)
    try:
        with MlflowRest(client.tracking_uri, account_in(account), timeout_s=5) as mlflow:
            runs = _open_runs(mlflow)
        jobs = {job["submission_id"]: job for job in connection.call("GET", "/api/jobs/").json()} if runs else {}
    except UnreachableError:
        return  # `health` reports a service of ours that failed
    finally:
        connection.close()
    for run_id, job_id in runs.items():
        job = jobs.get(job_id, {})
        ended = job.get("status") in _ENDED and time.time() - (job.get("end_time") or 0) / 1000 > _GRACE_SECONDS
        if ended:
            yield Finding(
                f"The run {run_id} is RUNNING in MLflow, although its job {job_id} is {job['status']}.",
                "It looks as if it still trained; only the gateway ends runs of jobs, and it has not done so.",
                "make logs SERVICE=gateway",
            )


def _open_runs(mlflow: MlflowRest) -> dict[str, str]:
    """Return the job of each open run that has one."""
    listed = mlflow.all("POST", "experiments/search", "experiments", {"max_results": _PAGE})
    ids = [experiment["experiment_id"] for experiment in listed]
    query = {"filter": "attributes.status = 'RUNNING'", "max_results": _PAGE}
    jobs = {}
    for first in range(0, len(ids), _EXPERIMENTS):
        values = {"experiment_ids": ids[first : first + _EXPERIMENTS], **query}
        for run in mlflow.all("POST", "runs/search", "runs", values):
            tags = {tag["key"]: tag["value"] for tag in run["data"].get("tags", [])}
            if TAG_JOB in tags:
                jobs[run["info"]["run_id"]] = tags[TAG_JOB]
    return jobs
