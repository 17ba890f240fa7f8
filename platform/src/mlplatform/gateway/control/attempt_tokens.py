"""Tokens of attempts of people's jobs; each ends with its attempt."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import Engine, and_, delete, exists, select
from sqlalchemy.orm import Session

from mlplatform.gateway.database.engine import transaction
from mlplatform.gateway.jobs.schema import AttemptRow, JobRow
from mlplatform.gateway.jobs.store import now
from mlplatform.gateway.people.schema import TokenRow
from mlplatform.gateway.people.tokens import issue, parts
from mlplatform.secret_folder import TOKEN


class AttemptTokens:
    """Tokens in the gateway's database; every method raises UnreachableError while that is unavailable.

    Args:
        engine: the gateway's database.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._issued: dict[str, str] = {}

    async def variables(self, job: JobRow, attempt: AttemptRow) -> dict[str, str]:
        """Return the variable with the token of an attempt; none for the shared token's jobs.

        A repeated start of the attempt gets the same.
        """
        if not job.person:
            return {}
        if attempt.ray_submission_id not in self._issued:
            self._issued[attempt.ray_submission_id] = await self.issue(job.person, job.id, attempt.number)
        token = self._issued[attempt.ray_submission_id]
        return {TOKEN: token}

    @transaction
    def issue(self, session: Session, person: str, job_id: str, attempt: int) -> str:
        """Return a new token for an attempt; earlier ones of the attempt stay valid, as Ray may have one of them."""
        return issue(session, "job", person, now(), job_id=job_id, attempt=attempt).token

    async def tidy(self) -> None:
        """Delete the tokens of attempts that have ended."""
        ended = await self._ended()
        await self._delete(ended)
        self._issued = {name: token for name, token in self._issued.items() if parts(token)[0] not in ended}

    @transaction
    def _ended(self, session: Session) -> Sequence[str]:
        # Created earlier: a new job may have the id of a deleted one.
        its = and_(
            AttemptRow.job_id == TokenRow.job_id,
            AttemptRow.number == TokenRow.attempt,
            AttemptRow.created <= TokenRow.created,
        )
        runs = exists().where(its, AttemptRow.ended.is_(None))
        return session.scalars(select(TokenRow.id).where(TokenRow.kind == "job", ~runs)).all()

    @transaction
    def _delete(self, session: Session, token_ids: Collection[str]) -> None:
        session.execute(delete(TokenRow).where(TokenRow.id.in_(token_ids)))
