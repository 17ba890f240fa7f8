"""Measured use of GPUs in the gateway's database."""

from __future__ import annotations

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from mlplatform.gateway.database.engine import transaction
from mlplatform.gateway.jobs.schema import AttemptRow
from mlplatform.gateway.jobs.store import find_job, now
from mlplatform.gateway.usage import ledger


class GpuUseStore:
    """Store of what GPUs do for running attempts; raises UnreachableError while the database is unavailable."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @transaction
    def measured(self, session: Session, job_id: str, number: int, idle: bool, gpu_s: float | None) -> None:
        """Record what the GPUs of an open attempt have done.

        Args:
            job_id: its job.
            number: number of the attempt.
            idle: whether they do nothing.
            gpu_s: GPU-seconds for which they have computed since the last record; None if nothing measures them.

        Raises:
            NoSuchJobError: the job was deleted.
        """
        job = find_job(session, job_id, lock=True)
        attempt = session.get_one(AttemptRow, (job.id, number))
        if attempt.ended is not None:
            return
        if not idle:
            attempt.idle_since = None
        elif attempt.idle_since is None:
            attempt.idle_since = now()
        if gpu_s is not None:
            ledger.use(session, job.sequence, number, gpu_s)
