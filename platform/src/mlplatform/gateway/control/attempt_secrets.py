"""Delivery of a person's secrets to the attempts of that person's jobs (`secret_folder.py` is the other end)."""

from __future__ import annotations

import hmac

from sqlalchemy import Engine, exists, select
from sqlalchemy.orm import Session

from mlplatform.contract import PERSON_TOKEN
from mlplatform.gateway.database.engine import transaction
from mlplatform.gateway.errors import ForbiddenError, TokenError
from mlplatform.gateway.jobs.schema import AttemptRow, JobRow
from mlplatform.gateway.jobs.store import now
from mlplatform.gateway.people.schema import PersonRow, SecretRow, TokenRow
from mlplatform.gateway.people.tokens import digest
from mlplatform.secret_folder import FOLDER, folder_of

WRONG = "Forbidden: Invalid token of an attempt; only a job that runs reads the secrets of its owner."


class AttemptSecrets:
    """Attempts and their owners; every method raises UnreachableError while the database is unavailable."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def variables(self, job: JobRow, attempt: AttemptRow) -> dict[str, str]:
        """Return the variable by which the processes of an attempt find their folder; none without secrets."""
        if not job.person or not await self._has_any(job.person):
            return {}
        return {FOLDER: folder_of(attempt.ray_submission_id)}

    @transaction
    def owner(self, session: Session, token: str) -> str:
        """Return the person whose job has an attempt with this token.

        Raises:
            TokenError: the token is wrong.
            ForbiddenError: it is a person's, or its attempt has ended, or the person was removed.
        """
        match = PERSON_TOKEN.fullmatch(token)
        row = session.get(TokenRow, match[1]) if match else None
        if match is None or row is None or not hmac.compare_digest(row.digest, digest(match[2])):
            raise TokenError(WRONG)
        if row.kind != "job":
            raise ForbiddenError("Nobody reads values of secrets: only jobs of their owner get them, as files.")
        person, attempt = session.get(PersonRow, row.owner), session.get(AttemptRow, (row.job_id, row.attempt))
        # A token is never valid for a person who was added later under the name of its owner.
        if person is None or person.created > row.created or row.revoked is not None or row.expires <= now():
            raise ForbiddenError(f"The token of this attempt has ended, because {row.owner} was removed.")
        if attempt is None or attempt.ended is not None:
            raise ForbiddenError(f"Attempt {row.attempt} of job {row.job_id} has ended, and its token with it.")
        return row.owner

    @transaction
    def _has_any(self, session: Session, person: str) -> bool:
        return bool(session.scalar(select(exists().where(SecretRow.person == person))))
