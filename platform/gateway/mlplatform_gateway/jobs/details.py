"""Jobs in the form that Ray's clients and dashboard expect (`JobDetails` of Ray 2.60), one by one and as a list."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Engine, Row, select
from sqlalchemy.orm import Session

from mlplatform.api.jobs import Attempt
from mlplatform_gateway.database.engine import Store, transaction
from mlplatform_gateway.errors import REJECTS
from mlplatform_gateway.jobs.schema import AttemptRow, JobRow
from mlplatform_gateway.jobs.states import State

_REDACTED = "<redacted>"

HIDDEN = "<hidden>"
"""The command of another team's job."""

_REASON_CHARACTERS = 300
_AMOUNTS = ("entrypoint_num_", "entrypoint_memory", "entrypoint_resources")
_OF_JOBS = (
    *(JobRow.sequence, JobRow.id, JobRow.state, JobRow.entrypoint, JobRow.message, JobRow.created, JobRow.ended),
    *(JobRow.job_metadata, JobRow.runtime_env, JobRow.exit_code, JobRow.error_type),
    *(JobRow.user, JobRow.person, JobRow.team, JobRow.workers, JobRow.entrypoint_request),
)

_OF_ATTEMPTS = (AttemptRow.job_id, AttemptRow.ray_job_id, AttemptRow.driver, AttemptRow.agent, AttemptRow.node_id)
_NOT_DELETED = select(JobRow.sequence).where(JobRow.deleted.is_(None))

_NAMED = 500
"""Most jobs that one statement names; beyond that, reading all is faster, and SQLite limits the parameters."""


def job_details(job: JobRow | Row[Any], last: AttemptRow | Row[Any] | None, redact: bool = False) -> dict[str, Any]:
    """Return Ray's fields of a job and its last attempt; `message` is the platform's own.

    `redact` hides the values of environment variables, as Ray does from browsers.
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
    known = {"user": job.user, "team": job.team, **group, **entry_amounts(job)}
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


def entry_amounts(job: JobRow | Row[Any]) -> dict[str, Any]:
    """Return the resources that the entry point of a job requests, under the names of the submission."""
    return {name: amount for name, amount in job.entrypoint_request.items() if name.startswith(_AMOUNTS)}


def public_reason(message: str) -> str:
    """Return the part of a message that everybody may see: its first line, at most 300 characters.

    Ray's messages about jobs that it rejects quote the runtime environment, such as addresses of package indexes with
    their passwords; of these only the beginning is returned.
    """
    if message.startswith(REJECTS):
        return f"{REJECTS}."
    return next(iter(message.strip().splitlines()), "")[:_REASON_CHARACTERS]


def public_attempt(attempt: AttemptRow, everything: bool) -> Attempt:
    """Return an attempt; its whole reason is for the job's team only."""
    shown = Attempt.model_validate(attempt)
    if everything or shown.reason is None:
        return shown
    return shown.model_copy(update={"reason": public_reason(shown.reason)})


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


@dataclass
class Entry:
    """A job of the list, with its JSON in each form that somebody has asked for."""

    job: Row[Any]
    last: Row[Any] | None
    _texts: dict[tuple[bool, bool], bytes] = field(default_factory=dict)

    def text(self, redact: bool, public: bool = False) -> bytes:
        """Return the job in Ray's form as JSON, for the `public` without what only a job's team may see."""
        if (redact, public) not in self._texts:
            details = listed_publicly(self.job, self.last) if public else job_details(self.job, self.last, redact)
            encoded = json.dumps(details, ensure_ascii=False, separators=(",", ":")).encode()
            self._texts[redact, public] = encoded
        return self._texts[redact, public]


class JobList(Store):
    """All jobs. An ended job never changes, so each is read once, and encoded once in each form.

    That takes a kilobyte or two of memory per ended job.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._ended: dict[int, Entry] = {}

    async def entries(self) -> list[Entry]:
        """Return all jobs in the order of arrival; raises UnreachableError while the database is unavailable."""
        # Another request may replace the dictionary meanwhile.
        ended = self._ended
        sequences, unknown = await self._read(ended.keys())
        found: dict[int, Entry] = {}
        for job, last in unknown:
            (found if job.ended is None else ended)[job.sequence] = Entry(job, last)
        found |= {sequence: ended[sequence] for sequence in sequences if sequence in ended}
        if len(ended) > len(sequences):
            self._ended = {job: entry for job, entry in found.items() if job in ended}  # without the deleted jobs
        return [found[sequence] for sequence in sequences if sequence in found]

    @transaction
    def _read(
        self, session: Session, known: Collection[int]
    ) -> tuple[Sequence[int], Sequence[tuple[Row[Any], Row[Any] | None]]]:
        """Return the sequence numbers of all jobs; and columns of each unknown job, with those of its last attempt.

        Loading whole objects of thousands of jobs takes several times as long.
        """
        sequences = session.scalars(_NOT_DELETED.order_by(JobRow.sequence)).all()
        unknown = [sequence for sequence in sequences if sequence not in known]
        select_jobs, select_attempts = select(*_OF_JOBS), select(*_OF_ATTEMPTS).order_by(AttemptRow.number)
        if len(unknown) <= _NAMED:
            select_jobs = select_jobs.where(JobRow.sequence.in_(unknown))
            ids = select(JobRow.id).where(JobRow.sequence.in_(unknown))
            select_attempts = select_attempts.where(AttemptRow.job_id.in_(ids))
        # Jobs first: the attempts of a job that has ended by then are complete.
        jobs = session.execute(select_jobs).all()
        last = {attempt.job_id: attempt for attempt in session.execute(select_attempts)}
        return sequences, [(job, last.get(job.id)) for job in jobs]
