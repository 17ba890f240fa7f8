"""Explanations of waiting jobs, in the gateway's database."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import Engine, update
from sqlalchemy.orm import Session

from mlplatform.gateway.database.engine import transaction
from mlplatform.gateway.jobs.schema import JobRow
from mlplatform.gateway.jobs.states import State

_BATCH = 1000


class Explanations:
    """Store of explanations; raises UnreachableError while the database is unavailable."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @transaction
    def set(self, session: Session, messages: Mapping[str, Collection[int]]) -> None:
        """Change the messages of jobs that still wait, with a statement for all that wait for the same reasons.

        When a job starts, the reasons of thousands may change, and nothing else is decided meanwhile.

        Args:
            messages: sequence numbers of jobs by their message.
        """
        for message, jobs in messages.items():
            numbers = sorted(jobs)
            for first in range(0, len(numbers), _BATCH):
                some = JobRow.sequence.in_(numbers[first : first + _BATCH]), JobRow.state == State.WAITING
                session.execute(update(JobRow).where(*some).values(message=message))
