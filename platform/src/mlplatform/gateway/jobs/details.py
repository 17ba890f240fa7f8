"""A job as Ray's clients and its dashboard want to see it: `JobDetails` of Ray 2.60, made of what the store keeps."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Row

from mlplatform.gateway.jobs.schema import AttemptRow, JobRow
from mlplatform.gateway.jobs.states import State

_REDACTED = "<redacted>"


def job_details(job: JobRow, redact: bool = False) -> dict[str, Any]:
    """Ray's fields of a job; `message` says what is ours to say.

    Args:
        redact: hide the values of environment variables, as Ray does from browsers.
    """
    return listed(job, job.attempts[-1] if job.attempts else None, redact)


def listed(job: JobRow | Row[Any], last: AttemptRow | Row[Any] | None, redact: bool = False) -> dict[str, Any]:
    """The same from the columns of a job and of its last attempt, as `JobStore.list` gives them."""
    return {
        "type": "SUBMISSION",
        "job_id": last.ray_job_id if last else None,
        "submission_id": job.id,
        "driver_info": last.driver if last else None,
        "status": State(job.state).of_ray,
        "entrypoint": job.entrypoint,
        "message": job.message,
        "error_type": job.error_type,
        "start_time": _milliseconds(job.created),
        "end_time": _milliseconds(job.ended),
        "metadata": job.job_metadata,
        "runtime_env": redacted(job.runtime_env) if redact else job.runtime_env,
        "driver_agent_http_address": last.agent if last else None,
        "driver_node_id": last.node_id if last else None,
        "driver_exit_code": job.exit_code,
    }


def redacted(runtime_env: Mapping[str, Any]) -> dict[str, Any]:
    """The environment without the values of its variables; their names stay (`ray.dashboard.runtime_env_redaction`)."""
    variables = runtime_env.get("env_vars")
    hidden = {"env_vars": dict.fromkeys(variables, _REDACTED)} if isinstance(variables, dict) else {}
    return {**runtime_env, **hidden}


def _milliseconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1000)
