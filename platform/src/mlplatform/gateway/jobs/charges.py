"""Changes of what running attempts are charged for, in the gateway's database."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from mlplatform.gateway.database.engine import transaction
from mlplatform.gateway.jobs.schema import AttemptRow
from mlplatform.gateway.jobs.store import find_job, now
from mlplatform.gateway.usage import ledger


class ChargeStore:
    """Store of charges; raises UnreachableError while the database is unavailable."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @transaction
    def change(
        self, session: Session, job_id: str, number: int, kind: ledger.Kind | None, amounts: Mapping[str, float] | None
    ) -> bool:
        """Charge an open attempt for other amounts or on other terms from now on.

        Args:
            job_id: its job.
            number: number of the attempt.
            kind: terms on which it holds its resources; None keeps them.
            amounts: everything that it requests or holds, by Ray's name of the resource; None keeps them.

        Returns:
            False if nothing has changed, or the attempt has ended.

        Raises:
            NoSuchJobError: the job was deleted.
        """
        job = find_job(session, job_id, lock=True)
        if session.get_one(AttemptRow, (job.id, number)).ended is not None:
            return False
        return ledger.change(session, job.sequence, number, now(), kind, amounts)
