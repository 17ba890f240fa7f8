"""Record of the jobs' runs at MLflow, as their attempts report them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from mlplatform_gateway.database.engine import Store, transaction
from mlplatform_gateway.errors import ForbiddenError
from mlplatform_gateway.jobs.schema import AttemptRow, RunRow
from mlplatform_gateway.jobs.store import now


class JobRuns(Store):
    """The record; every method raises UnreachableError while the database is unavailable."""

    @transaction
    def report(self, session: Session, job_id: str, attempt: int, run_id: str, own: bool) -> None:
        """Record that an attempt has opened or continued a run; may be repeated.

        Args:
            job_id: the job.
            attempt: number of its attempt, which must not have been deleted.
            run_id: id of the run at MLflow.
            own: it is the run that all attempts of the job share, once reported so.

        Raises:
            ForbiddenError: another job has reported the run.
        """
        # Locked, because several processes of the attempt may report a run at the same moment.
        session.get_one(AttemptRow, (job_id, attempt), with_for_update=True)
        row = session.get(RunRow, run_id)
        if row is None:
            session.add(RunRow(run_id=run_id, job_id=job_id, attempt=attempt, own=own, reported=now()))
        elif row.job_id != job_id:
            raise ForbiddenError(f"Run {run_id} belongs to another job, so job {job_id} cannot report it.")
        else:
            row.attempt, row.own = max(row.attempt, attempt), row.own or own

    @transaction
    def of(self, session: Session, job_id: str) -> Sequence[RunRow]:
        """Return the runs of a job: its own first, then in the order of the reports."""
        order = (RunRow.own.desc(), RunRow.reported, RunRow.run_id)
        return session.scalars(select(RunRow).where(RunRow.job_id == job_id).order_by(*order)).all()
