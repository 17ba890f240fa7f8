"""Jobs in the form that Ray's clients and dashboard expect: `JobDetails` of Ray 2.60, from the stored rows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Row

from mlplatform.gateway.jobs.schema import AttemptRow, JobRow
from mlplatform.gateway.jobs.states import State

_REDACTED = "<redacted>"


def job_details(job: JobRow, redact: bool = False) -> dict[str, Any]:
    """Return Ray's fields of a job; `message` is the platform's own.

    Args:
        job: the stored job.
        redact: hide the values of environment variables, as Ray does from browsers.
    """
    return listed(job, job.attempts[-1] if job.attempts else None, redact)


def listed(job: JobRow | Row[Any], last: AttemptRow | Row[Any] | None, redact: bool = False) -> dict[str, Any]:
    """Return the same fields from the columns of a job and of its last attempt, as `JobStore.list` returns them."""
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
    """Return the environment with the values of its variables hidden, as `ray.dashboard.runtime_env_redaction` does."""
    variables = runtime_env.get("env_vars")
    hidden = {"env_vars": dict.fromkeys(variables, _REDACTED)} if isinstance(variables, dict) else {}
    return {**runtime_env, **hidden}


def _milliseconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1000)
