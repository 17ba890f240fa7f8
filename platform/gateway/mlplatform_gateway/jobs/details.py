"""Jobs in the form that Ray's clients and dashboard expect: `JobDetails` of Ray 2.60, from the stored rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Row

from mlplatform_gateway.errors import REJECTS
from mlplatform_gateway.jobs.schema import AttemptRow, JobRow
from mlplatform_gateway.jobs.states import State

_REDACTED = "<redacted>"

HIDDEN = "<hidden>"
"""The command of another team's job."""

_REASON_CHARACTERS = 300

_AMOUNTS = ("entrypoint_num_", "entrypoint_memory", "entrypoint_resources")


def job_details(job: JobRow | Row[Any], last: AttemptRow | Row[Any] | None, redact: bool = False) -> dict[str, Any]:
    """Return Ray's fields of a job; `message` is the platform's own.

    Args:
        job: the stored job, or the columns of the list.
        last: its last attempt.
        redact: hide the values of environment variables, as Ray does from browsers.
    """
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


def listed_publicly(job: JobRow | Row[Any], last: AttemptRow | Row[Any] | None) -> dict[str, Any]:
    """Return Ray's fields with owner, requested resources, state and reason of a job; nothing else of its own.

    The metadata has the owner as `user` and `team`, and the resources under the names of the submission.
    """
    group = {"workers" if name == "count" else f"worker_{name}": amount for name, amount in (job.workers or {}).items()}
    entry = {name: amount for name, amount in job.entrypoint_request.items() if name.startswith(_AMOUNTS)}
    known = {"user": job.user, "team": job.team, **group, **entry}
    return {
        **job_details(job, last, redact=True),
        "entrypoint": HIDDEN,
        # Ray's messages about failed jobs continue with the end of the log.
        "message": public_reason(job.message),
        "metadata": {name: _text(value) for name, value in known.items() if value},
        "runtime_env": {},
        "driver_info": None,
        "driver_agent_http_address": None,
    }


def public_reason(message: str) -> str:
    """Return the part of a message that everybody may see: its first line, at most 300 characters.

    Ray's messages about jobs that it rejects quote the runtime environment, such as addresses of package indexes with
    their passwords; of these only the beginning is returned.
    """
    if message.startswith(REJECTS):
        return f"{REJECTS}."
    return next(iter(message.strip().splitlines()), "")[:_REASON_CHARACTERS]


def redacted(runtime_env: Mapping[str, Any]) -> dict[str, Any]:
    """Return the environment with the values of its variables hidden, as `ray.dashboard.runtime_env_redaction` does."""
    variables = runtime_env.get("env_vars")
    hidden = {"env_vars": dict.fromkeys(variables, _REDACTED)} if isinstance(variables, dict) else {}
    return {**runtime_env, **hidden}


def _text(value: Any) -> str:
    """Return a value of the metadata, where all are text."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, str) else json.dumps(value)


def _milliseconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1000)
