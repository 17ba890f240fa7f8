"""Access keys of MinIO beyond the accounts of the platform: what keeps them from being made, and which exist."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minio.minioadmin import MinioAdmin

# MinIO lets every account do this for itself, whatever its policy allows, unless a policy denies it: make keys that
# never expire and outlive a rotation, and change its own password, which locks out everybody who shares the account.
_FOR_ITSELF = [
    *("admin:CreateServiceAccount", "admin:UpdateServiceAccount", "admin:RemoveServiceAccount", "admin:CreateUser"),
]

NO_NEW_KEYS: list[dict[str, object]] = [{"Effect": "Deny", "Action": _FOR_ITSELF}]
"""Statements that keep an account from making access keys of its own."""

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


def foreign_keys(admin: MinioAdmin, accounts: Collection[str], root: str) -> Iterator[str]:
    """Yield users that are not among `accounts`, and access keys that a user has made; each as a text for display.

    Args:
        admin: client of the root account.
        accounts: names of the accounts that the platform declares.
        root: name of the root account.
    """
    users = json.loads(admin.user_list())
    yield from (f"user {user}" for user in sorted(users) if user not in accounts)
    for owner in (*sorted(users), root):
        made = json.loads(admin.list_service_account(owner)).get("accounts") or []
        yield from (f"key {key['accessKey']} of {owner}" for key in made)
