"""Tokens of attempts of people's jobs, and their accounts at MinIO; each ends with its attempt.

An attempt has one token, whose row in the database records both: the access key at MinIO has the token's id as its name
and the secret part as its secret. The row is stored before the key is made, and
deleted after the key: whenever the gateway is killed, it finds each key again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import Engine, and_, delete, exists, select
from sqlalchemy.orm import Session

from mlplatform.gateway.control.key_rights import attempt_policy
from mlplatform.gateway.database.engine import transaction
from mlplatform.gateway.jobs.schema import AttemptRow, JobRow
from mlplatform.gateway.jobs.store import now
from mlplatform.gateway.people.schema import TokenRow
from mlplatform.gateway.people.tokens import issue, parts
from mlplatform.gateway.upstream.access_keys import AccessKeys
from mlplatform.secret_folder import TOKEN

_OWN_ACCOUNT = {
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    *("AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE"),
}
"""Variables by which a job chooses an S3 account; ours would take precedence over the last two, or be mixed with it."""


class AttemptTokens:
    """Tokens in the gateway's database; every method raises UnreachableError while that or MinIO is unavailable.

    Args:
        engine: the gateway's database.
        keys: access keys at MinIO; None if jobs use the account that is mounted into the nodes.
    """

    def __init__(self, engine: Engine, keys: AccessKeys | None = None) -> None:
        self.engine = engine
        self._keys = keys
        self._issued: dict[str, str] = {}
        self._compared = False

    async def variables(self, job: JobRow, attempt: AttemptRow) -> dict[str, str]:
        """Return the variables with token and account of an attempt; none for the shared token's jobs.

        Clients of S3 prefer the account to the one that is mounted into the nodes. A repeated start of the attempt gets
        the same.

        Raises:
            AccessError, StorageError: MinIO rejects the account or the key.
        """
        if not job.person:
            return {}
        if attempt.ray_submission_id not in self._issued:
            self._issued[attempt.ray_submission_id] = await self.issue(job.person, job.id, attempt.number)
        token = self._issued[attempt.ray_submission_id]
        account = {TOKEN: token}
        if self._keys is None or _OWN_ACCOUNT & (job.runtime_env.get("env_vars") or {}).keys():
            return account
        key, secret = parts(token)
        await self._keys.add(key, secret, attempt_policy(job.id, job.team), f"job {job.id}, attempt {attempt.number}")
        return {**account, "AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}

    @transaction
    def issue(self, session: Session, person: str, job_id: str, attempt: int) -> str:
        """Return a new token for an attempt; earlier ones of the attempt stay valid, as Ray may have one of them."""
        return issue(session, "job", person, now(), job_id=job_id, attempt=attempt).token

    async def tidy(self) -> None:
        """Delete the keys and tokens of attempts that have ended."""
        ended = await self._ended()
        if self._keys is not None:
            await self._remove_keys(self._keys, ended)
        await self._delete(ended)
        self._issued = {name: token for name, token in self._issued.items() if parts(token)[0] not in ended}

    async def _remove_keys(self, keys: AccessKeys, ended: Collection[str]) -> None:
        """Remove keys of ended attempts and, once per process, those without a token, as after a restore."""
        unknown: set[str] = set()
        if not self._compared:
            # Read in this order: a token is stored before its key is made.
            unknown = (await keys.all()).keys() - set(await self._all())
        for key in (*ended, *unknown):
            await keys.remove(key)
        self._compared = True

    @transaction
    def _all(self, session: Session) -> Sequence[str]:
        return session.scalars(select(TokenRow.id).where(TokenRow.kind == "job")).all()

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
