"""The list of all jobs as JSON, for the clients that ask for it every few seconds."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, Row, select
from sqlalchemy.orm import Session

from mlplatform_gateway.database.engine import Store, transaction
from mlplatform_gateway.jobs.details import job_details, listed_publicly
from mlplatform_gateway.jobs.schema import AttemptRow, JobRow

_OF_JOBS = (
    *(JobRow.sequence, JobRow.id, JobRow.state, JobRow.entrypoint, JobRow.message, JobRow.created, JobRow.ended),
    *(JobRow.job_metadata, JobRow.runtime_env, JobRow.exit_code, JobRow.error_type),
    *(JobRow.user, JobRow.person, JobRow.team, JobRow.workers, JobRow.entrypoint_request),
)

_OF_ATTEMPTS = (
    AttemptRow.job_id,
    AttemptRow.ray_job_id,
    AttemptRow.driver,
    AttemptRow.agent,
    AttemptRow.node_id,
)

_NOT_DELETED = select(JobRow.sequence).where(JobRow.deleted.is_(None))

_NAMED = 500
"""Most jobs that one statement names; beyond that, reading all is faster, and SQLite limits the parameters."""


@dataclass
class Entry:
    """A job of the list, with its JSON in each form that somebody has asked for."""

    job: Row[Any]
    last: Row[Any] | None
    _texts: dict[tuple[bool, bool], bytes] = field(default_factory=dict)

    def text(self, redact: bool, public: bool = False) -> bytes:
        """Return the job in Ray's form as JSON.

        Args:
            redact: hide the values of environment variables.
            public: leave out everything that only a job's team may see.
        """
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
        """Return all jobs in the order of arrival.

        Raises:
            UnreachableError: the database is unavailable.
        """
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
