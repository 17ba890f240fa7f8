"""Principal of a request: the person or service that its credential belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Role(StrEnum):
    """Role of a person in a team."""

    MEMBER = "member"
    LEAD = "lead"


@dataclass(frozen=True)
class Principal:
    """A person, a service, or everybody who has the shared token.

    Attributes:
        person: name of the person; empty for the others.
        teams: the person's teams in the order of joining, and the role in each.
        administrator: true for rights over everything; the shared token has them.
        token_id: id of the token with which the person authenticated, also if a session was opened with it.
        service: name of the service, which may use its own paths only; empty for the others.
    """

    person: str = ""
    teams: Mapping[str, Role] = field(default_factory=dict)
    administrator: bool = False
    token_id: str = ""
    service: str = ""


SHARED = Principal(administrator=True)
"""Everybody who has the shared token."""
