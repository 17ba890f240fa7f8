"""Principal of a request: the person or service that its credential belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mlplatform.api.people import Role


@dataclass(frozen=True)
class Attempt:
    """An attempt of a job, which acts for the job's owner.

    Attributes:
        job: id of the job.
        number: number of the attempt.
        team: team of the job; None if it has none.
        owner: owner of the job, with all rights; `SHARED` for a job of the shared token.
    """

    job: str
    number: int
    team: str | None
    owner: Principal


@dataclass(frozen=True)
class Principal:
    """A person, a service, everybody who has the shared token, or an attempt of a job.

    Attributes:
        person: name of the person, or of the owner of the attempt's job; empty for the others.
        teams: the person's teams in the order of joining, and the role in each.
        administrator: true for rights over everything; the shared token has them.
        token_id: id of the token with which the person authenticated, also if a session was opened with it.
        service: name of the service, which may use its own paths only; empty for the others.
        attempt: the attempt; None for the others.
    """

    person: str = ""
    teams: Mapping[str, Role] = field(default_factory=dict)
    administrator: bool = False
    token_id: str = ""
    service: str = ""
    attempt: Attempt | None = None


NOBODY = Principal()
"""The sender of a request that needs no credential; it has no rights."""

SHARED = Principal(administrator=True)
"""Everybody who has the shared token."""
