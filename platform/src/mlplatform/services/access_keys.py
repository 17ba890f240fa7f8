"""Access keys of MinIO beyond the accounts of the platform: what keeps them from being made, and which exist."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minio.minioadmin import MinioAdmin

ATTEMPTS = "attempts"
"""Account below which the gateway makes a key for each attempt of a person's job, and removes it after the attempt."""

PEOPLE = "people"
"""Account below which the gateway makes a key for each token of a person. Not `attempts`: a key can remove all keys of
its account, and a job must not end the access of people."""

# MinIO lets every account do this for itself, whatever its policy allows, unless a policy denies it: make keys that
# never expire and outlive a rotation, and change its own password, which locks out everybody who shares the account.
_FOR_ITSELF = [
    *("admin:CreateServiceAccount", "admin:UpdateServiceAccount", "admin:RemoveServiceAccount", "admin:CreateUser"),
]

NO_NEW_KEYS: list[dict[str, object]] = [{"Effect": "Deny", "Action": _FOR_ITSELF}]
"""Statements that keep an account from making access keys of its own."""

OWN_KEYS: dict[str, list[dict[str, object]]] = {
    ATTEMPTS: [{"Effect": "Deny", "Action": ["admin:UpdateServiceAccount", "admin:CreateUser"]}],
    # For the policy of a key whose owner changes teams. MinIO has no narrower right (`cmd/admin-handlers-users.go`).
    PEOPLE: [
        {"Effect": "Allow", "Action": ["admin:UpdateServiceAccount"]},
        {"Effect": "Deny", "Action": ["admin:CreateUser"]},
    ],
}
"""Statements for each account that makes and removes access keys of its own; it cannot change its own password."""

# No action of a policy covers STS' AssumeRole: each account may open sessions of up to a year, which outlive a rotation
# too. In a session, and with a key that an account has made for itself, requests have the principal AssumedRole.
NO_SESSIONS: list[dict[str, object]] = [
    {
        "Effect": "Deny",
        "Action": ["s3:*"],
        "Resource": ["arn:aws:s3:::*"],
        "Condition": {"StringEquals": {"aws:principaltype": ["AssumedRole"]}},
    }
]
"""Statements that accept an account's own key only: sessions and keys made from it can do nothing."""


@dataclass(frozen=True)
class Key:
    """A user of MinIO beyond those of the platform, or an access key that a user has made.

    Attributes:
        name: access key.
        owner: user that has made it; None for a user.
    """

    name: str
    owner: str | None = None

    def __str__(self) -> str:
        """Return a text for display."""
        return f"user {self.name}" if self.owner is None else f"key {self.name} of {self.owner}"

    def remove(self, admin: MinioAdmin) -> None:
        """Delete it; requests with it are refused from then on."""
        if self.owner is None:
            admin.user_remove(self.name)
        else:
            admin.delete_service_account(self.name)


def found_keys(admin: MinioAdmin, accounts: Collection[str], root: str) -> Iterator[Key]:
    """Yield users that are not among `accounts`, and access keys that a user has made.

    Those of attempts and people are left out: the gateway removes each that has ended, also one that it has not made.

    Args:
        admin: client of the root account.
        accounts: names of the accounts that the platform declares.
        root: name of the root account.
    """
    users = sorted(json.loads(admin.user_list()))
    yield from (Key(user) for user in users if user not in accounts)
    for owner in (*(user for user in users if user not in OWN_KEYS), root):
        made = json.loads(admin.list_service_account(owner)).get("accounts") or []
        yield from (Key(key["accessKey"], owner) for key in made)


def foreign_keys(admin: MinioAdmin, accounts: Collection[str], root: str) -> Iterator[str]:
    """Yield `found_keys` as texts for display."""
    yield from map(str, found_keys(admin, accounts, root))
