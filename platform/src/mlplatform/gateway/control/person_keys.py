"""Access keys at MinIO of people's tokens: each has the rights of its owner's teams, and ends with its token.

A key has the token's id as its name and the token's secret as its secret. The gateway stores neither, so that it can
change and remove a key at any time, but make it only when the token is issued.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from mlplatform.errors import AccessError, PlatformError, StorageError
from mlplatform.gateway.control.key_rights import person_policy
from mlplatform.gateway.database.engine import transaction
from mlplatform.gateway.people.schema import MemberRow, PersonRow, TokenRow
from mlplatform.gateway.people.tokens import NewToken, parts
from mlplatform.gateway.upstream.access_keys import AccessKeys
from mlplatform.throttle import ThrottledWarning

_PASS_SECONDS = 30.0

_TEAMS = 24
"""Teams in the policy of a key at most, those that the person joined first."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Owner:
    """Owner of a valid token, with the teams in the order of joining."""

    person: str
    teams: Sequence[str]

    @property
    def policy(self) -> dict[str, object]:
        return person_policy(self.teams[:_TEAMS])

    @property
    def description(self) -> str:
        """Text for MinIO's lists, by which a key with other rights is found, also after a restart or an upgrade."""
        return f"person {self.person}, rights {hashlib.sha256(json.dumps(self.policy).encode()).hexdigest()[:16]}"


class PersonKeys:
    """Keys of the tokens in the gateway's database.

    Args:
        engine: the gateway's database.
        keys: access keys at MinIO; None if the object store has no accounts of people.
    """

    def __init__(self, engine: Engine, keys: AccessKeys | None = None) -> None:
        self.engine = engine
        self._keys = keys
        self._made: dict[str, str] = {}
        self._listed = False
        self._alone = asyncio.Lock()
        self._warn = ThrottledWarning(_log)

    async def add(self, issued: NewToken) -> bool:
        """Make the key of a new token; return whether the token has one now.

        Raises:
            UnreachableError: MinIO or the database is unavailable.
            AccessError, StorageError: MinIO rejects the account or the key.
        """
        if self._keys is None:
            return False
        key, secret = parts(issued.token)
        async with self._alone:
            owner = (await self._owners()).get(key)
            if owner is None:  # removed a moment ago
                return False
            # Recorded first: a key whose request was interrupted may exist.
            self._made[key] = owner.description
            await self._keys.add(key, secret, owner.policy, owner.description)
        return True

    async def tidy(self) -> None:
        """Remove the keys of tokens that have ended, and give the others the present rights of their owners.

        Raises:
            UnreachableError: MinIO or the database is unavailable.
            AccessError, StorageError: MinIO rejects the account or a request.
        """
        if self._keys is None:
            return
        async with self._alone:
            if not self._listed:
                self._made |= await self._keys.all()
                self._listed = True
            owners = await self._owners()
            for key in self._made.keys() - owners.keys():
                await self._remove(self._keys, key)
            for key, description in list(self._made.items()):
                if description != owners[key].description:
                    await self._change(self._keys, key, owners[key])

    async def follow(self) -> None:
        """Do so at once after a change; what MinIO cannot do now is done by `run`."""
        with suppress(PlatformError):
            await self.tidy()

    async def run(self) -> None:
        """Tidy every 30 s, forever."""
        while self._keys is not None:
            try:
                await self.tidy()
            except PlatformError as error:
                self._warn("%s", error)
            except Exception:
                _log.exception("The keys of people were not compared with their tokens; this will be retried.")
            await asyncio.sleep(_PASS_SECONDS)

    async def _change(self, keys: AccessKeys, key: str, owner: _Owner) -> None:
        try:
            await keys.change(key, owner.policy, owner.description)
        except (AccessError, StorageError) as error:
            # It must not keep the rights of a team that its owner has left.
            await self._remove(keys, key)
            self._warn("%s The key of %s is removed; the next log-in makes another one.", error, owner.person)
        else:
            self._made[key] = owner.description

    async def _remove(self, keys: AccessKeys, key: str) -> None:
        await keys.remove(key)
        del self._made[key]

    @transaction
    def _owners(self, session: Session) -> Mapping[str, _Owner]:
        """Return the owner of each valid token of a person, by the token's id."""
        teams: dict[str, list[str]] = {}
        for member in session.scalars(select(MemberRow).order_by(MemberRow.joined, MemberRow.team)):
            teams.setdefault(member.person, []).append(member.team)
        valid = (
            select(TokenRow.id, TokenRow.owner)
            # A token is never valid for a person who was added later under the name of its owner.
            .join(PersonRow, (PersonRow.name == TokenRow.owner) & (PersonRow.created <= TokenRow.created))
            .where(TokenRow.kind == "person", TokenRow.revoked.is_(None), TokenRow.expires > datetime.now(UTC))
        )
        return {token_id: _Owner(owner, teams.get(owner, [])) for token_id, owner in session.execute(valid)}
