"""Principals of requests, and their rights over jobs: the relation to a job, and what each relation allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

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
        token_id: id of the token with which the person authenticated, opened the session, or submitted the job.
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


class Relation(StrEnum):
    """Relation of somebody to a job, or to the team that a job is submitted for."""

    OWNER = "owner"
    TEAM_MATE = "team-mate"
    LEAD = "lead"
    OTHER = "other"
    ADMINISTRATOR = "administrator"
    ATTEMPT = "attempt"
    """An attempt of a job of the same owner."""


class Verb(StrEnum):
    """Something that can be done with a job."""

    SEE = "see"
    """Read its owner, team, requested resources, state, and the first line of the reason."""

    LOGS = "logs"
    METADATA = "metadata"
    """Read its command, its metadata and the whole message."""

    VARIABLES = "variables"
    """Read its runtime environment, with the names of its variables only."""

    VALUES = "values"
    """Read the values of its variables."""

    SHELL = "shell"
    """Open a shell in it, with its variables and its rights."""

    AGAIN = "again"
    """Submit its package and environment with other arguments, as a job of one's own."""

    STOP = "stop"
    RESUME = "resume"
    DELETE = "delete"
    SUBMIT = "submit"
    """Submit a job for the team."""

    URGENT = "urgent"
    """Submit a job for the team that precedes its other jobs."""


_OF_A_TEAM = {Verb.SEE, Verb.LOGS, Verb.METADATA, Verb.VARIABLES, Verb.AGAIN, Verb.SUBMIT}

_CONTROL = (Verb.STOP, Verb.RESUME, Verb.DELETE)

_RIGHTS: dict[Relation, set[Verb]] = {
    Relation.OTHER: {Verb.SEE},
    # What the code of a job needs for the jobs that it submits.
    Relation.ATTEMPT: {*_OF_A_TEAM, Verb.STOP},
    Relation.TEAM_MATE: _OF_A_TEAM,
    Relation.LEAD: {*_OF_A_TEAM, *_CONTROL, Verb.URGENT},
    Relation.OWNER: set(Verb),
    # The values may be secrets of the owner, whom a shell acts for.
    Relation.ADMINISTRATOR: set(Verb) - {Verb.VALUES, Verb.SHELL},
}


def relation(principal: Principal, person: str | None, team: str | None) -> Relation:
    """Return the relation of somebody to a job.

    A job of the shared token belongs to everybody who may use that: to administrators. An attempt has rights over jobs
    of its owner only.

    Args:
        person: owner of the job; None if the shared token submitted it.
        team: team of the job; None if it has none.
    """
    if principal.attempt:
        return Relation.ATTEMPT if principal.person == (person or "") else Relation.OTHER
    if principal.person and principal.person == person:
        return Relation.OWNER
    if principal.administrator:
        return Relation.OWNER if person is None else Relation.ADMINISTRATOR
    role = principal.teams.get(team) if team else None
    if role is None:
        return Relation.OTHER
    return Relation.LEAD if role is Role.LEAD else Relation.TEAM_MATE


def allows(to_job: Relation, verb: Verb) -> bool:
    """Return whether a relation to a job allows something."""
    return verb in _RIGHTS[to_job]


def may(principal: Principal, verb: Verb, person: str | None, team: str | None) -> bool:
    """Return whether somebody may do something with the job of a person and a team."""
    return allows(relation(principal, person, team), verb)


def refusal(principal: Principal, verb: Verb, job_id: str, person: str | None, team: str | None) -> str:
    """Return the sentence about a right that is missing, and who has it."""
    whose = f"{person or 'the shared token'}{f' of team {team}' if team else ''}"
    others = {Verb.LOGS: "read its log", Verb.SHELL: "open a shell in it", Verb.AGAIN: "submit it again"}
    action = f"{verb} it" if verb in _CONTROL else others.get(verb, f"read its {verb}")
    names = [
        *([person] if person else []),
        *([f"{'the leads' if verb in _CONTROL else 'members'} of team {team}"] if team else []),
        "administrators",
    ]
    if verb is Verb.SHELL:
        names = [person or "administrators"]
    may_do = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    who = f"job {principal.attempt.job}" if principal.attempt else principal.person
    return f"Job {job_id} belongs to {whose}, so {who} cannot {action}; only {may_do} can."
