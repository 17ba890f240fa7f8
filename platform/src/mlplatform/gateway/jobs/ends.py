"""Ends of jobs, by which the data that they have left is kept or removed."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from mlplatform.gateway.database.engine import transaction
from mlplatform.gateway.jobs.schema import JobRow


class JobEnds:
    """Reader of the ends of all jobs; raises UnreachableError while the database is unavailable."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @transaction
    def read(self, session: Session) -> tuple[dict[str, datetime], set[str]]:
        """Return the last end of each id that an ended job has, or had if it is deleted, and the ids of open jobs."""
        rows = session.execute(select(JobRow.id, JobRow.sequence, JobRow.ended, JobRow.deleted)).all()
        ended: dict[str, datetime] = {}
        for job_id, sequence, end, deleted in rows:
            if end is not None:
                known = job_id.removesuffix(f"~{sequence}") if deleted else job_id
                ended[known] = max(end, ended.get(known, end))
        return ended, {job_id for job_id, _, end, _ in rows if end is None}
