"""Tokens of attempts, which have the rights of the job's owner on the owner's things; each ends with its attempt."""

from __future__ import annotations

import json

from sqlalchemy import Engine, exists, select
from sqlalchemy.orm import Session

from mlplatform.secrets.secret_folder import FOLDER, TOKEN, folder_of
from mlplatform_gateway.database.engine import Store, transaction
from mlplatform_gateway.errors import TokenError
from mlplatform_gateway.jobs.schema import AttemptRow, JobRow
from mlplatform_gateway.jobs.store import find_job, now
from mlplatform_gateway.people.rights import SHARED, Attempt, Principal
from mlplatform_gateway.people.schema import SecretRow
from mlplatform_gateway.people.tokens import find, issue, owner_of

ADDRESS, HEADERS = "RAY_API_SERVER_ADDRESS", "RAY_JOB_HEADERS"
"""Variables by which Ray's clients of the Jobs API find the gateway. Not RAY_AUTH_TOKEN, which `ray.init` sends too."""

_STARTS = 1000
"""Attempts that start at the same time, at most; beyond that, a repeated start gets another token."""


class AttemptTokens(Store):
    """Tokens in the gateway's database; every method raises UnreachableError while that is unavailable.

    Args:
        address: of the gateway, as jobs reach it.
    """

    def __init__(self, engine: Engine, address: str) -> None:
        super().__init__(engine)
        self._address = address
        self._issued: dict[str, str] = {}
        """Token by the attempt's id at Ray, for starts that are repeated every half second while the head is busy."""

    async def variables(self, job: JobRow, attempt: AttemptRow) -> dict[str, str]:
        """Return the variables with the token of an attempt, for the clients of Ray and of the platform.

        A job that chooses another Jobs API gets nothing for Ray's. A repeated start of the attempt gets the same.
        """
        if attempt.ray_submission_id not in self._issued:
            self._issued[attempt.ray_submission_id] = await self.issue(job.person or "", job.id, attempt.number)
            if len(self._issued) > _STARTS:
                del self._issued[next(iter(self._issued))]  # the oldest
        token = self._issued[attempt.ray_submission_id]
        own = (job.runtime_env.get("env_vars") or {}).keys()
        found = {TOKEN: token}
        if not {ADDRESS, HEADERS} & own:
            found |= {ADDRESS: self._address, HEADERS: json.dumps({"Authorization": f"Bearer {token}"})}
        if job.person and await self._has_secrets(job.person):
            found[FOLDER] = folder_of(attempt.ray_submission_id)
        return found

    @transaction
    def issue(self, session: Session, person: str, job_id: str, attempt: int) -> str:
        """Return a new token for an attempt; earlier ones of the attempt stay valid, as Ray may have one of them."""
        return issue(session, "job", person, now(), job_id=job_id, attempt=attempt).token

    @transaction
    def check(self, session: Session, token: str) -> Principal:
        """Return the attempt that has a token.

        Raises:
            TokenError: it is wrong, its attempt has ended, or its owner was removed.
        """
        row = find(session, token, "job")
        owner = owner_of(session, row.owner, row.created, row.id) if row.owner else SHARED
        if owner is None or row.revoked is not None:
            removed = f"Forbidden: The token of this attempt has ended, because {row.owner} was removed."
            raise TokenError(removed, row.owner)
        attempt = session.get(AttemptRow, (row.job_id, row.attempt))
        # Created earlier: a new job may have the id of a deleted one.
        if attempt is None or attempt.ended is not None or attempt.created > row.created:
            raise TokenError(
                f"Forbidden: Attempt {row.attempt} of job {row.job_id} has ended, and its token with it.", row.owner
            )
        job = find_job(session, attempt.job_id)
        return Principal(row.owner, token_id=job.token or "", attempt=Attempt(job.id, attempt.number, job.team, owner))

    @transaction
    def _has_secrets(self, session: Session, person: str) -> bool:
        return bool(session.scalar(select(exists().where(SecretRow.person == person))))
