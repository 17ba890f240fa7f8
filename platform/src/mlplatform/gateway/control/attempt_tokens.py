"""Tokens with which attempts of people's jobs authenticate at MLflow; each ends with its attempt."""

from __future__ import annotations

from sqlalchemy import Engine, and_, delete, exists
from sqlalchemy.orm import Session

from mlplatform.gateway.database.engine import transaction
from mlplatform.gateway.jobs.schema import AttemptRow, JobRow
from mlplatform.gateway.jobs.store import now
from mlplatform.gateway.people.schema import TokenRow
from mlplatform.gateway.people.tokens import issue


class AttemptTokens:
    """Tokens in the gateway's database; every method raises UnreachableError while that is unavailable."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def variables(self, job: JobRow, attempt: AttemptRow) -> dict[str, str]:
        """Return the variables with the account of an attempt's owner at MLflow; none for the shared token's jobs.

        MLflow's client sends them, and its plugin prefers them to the account that is mounted into the nodes.
        """
        if not job.person:
            return {}
        token = await self.issue(job.person, job.id, attempt.number)
        return {"MLFLOW_TRACKING_USERNAME": job.person, "MLFLOW_TRACKING_PASSWORD": token}

    @transaction
    def issue(self, session: Session, person: str, job_id: str, attempt: int) -> str:
        """Return a new token for an attempt; earlier ones of the attempt stay valid, as Ray may have one of them."""
        return issue(session, "job", person, now(), job_id=job_id, attempt=attempt).token

    @transaction
    def tidy(self, session: Session) -> None:
        """Delete the tokens of attempts that have ended."""
        its = and_(AttemptRow.job_id == TokenRow.job_id, AttemptRow.number == TokenRow.attempt)
        runs = exists().where(its, AttemptRow.ended.is_(None))
        session.execute(delete(TokenRow).where(TokenRow.kind == "job", ~runs))
