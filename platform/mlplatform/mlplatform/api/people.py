"""People, teams, tokens and secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from mlplatform.api.base import Answer, Body, Moment, Name

_Amount = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]

_Number = Annotated[int, Field(ge=0, le=1_000_000)]


class Role(StrEnum):
    """Role of a person in a team."""

    MEMBER = "member"
    LEAD = "lead"


class Person(Answer):
    """A person with the role in each team, in the order of joining."""

    name: str
    administrator: bool
    teams: dict[str, Role]
    created: Moment


class People(Answer):
    """All people by name."""

    people: list[Person]
    you: str = Field("", description="Name of the person who asks; empty with the shared token.")


class NewPerson(Body):
    """A person to add, or a team or rights to add to one."""

    name: Name
    team: str | None = Field(None, description="Team to join; a new person needs one unless it is an administrator.")
    lead: bool = Field(False, description="Join as a lead of the team.")
    administrator: bool = False
    gpu_hours: _Amount | None = Field(None, description="GPU hours after which the new token submits no more jobs.")


class Invited(Answer):
    """A person who can log in with the code, once; earlier codes of the person are void."""

    name: str
    added: bool = Field(description="False if the person existed before.")
    code: str = Field(repr=False)
    expires: Moment


class RemovedPerson(Answer):
    """A person who was removed."""

    removed: str
    s3_key_in_file: bool = Field(description="True if the operator must replace the S3 key of people.")


class Limits(Body):
    """Upper limits of a team or a person; null for none."""

    gpus: _Amount | None = None
    cpus: _Amount | None = None
    running: _Number | None = Field(default=None, description="Jobs that run at the same time.")
    waiting: _Number | None = Field(
        default=None, description="Jobs that wait at the same time; the next submission gets status 429."
    )


class Caps(Body):
    """Upper limits of the whole team, and of each person in it."""

    team: Limits = Limits()
    person: Limits = Limits()


def _budget(value: str) -> str:
    if not re.fullmatch(r"(\d{1,6}/(day|week|month))?", value, re.ASCII):
        raise ValueError("use GPU hours per month, week or day, as in 500/month")
    return value


class TeamValues(Body):
    """Values of a team; a change leaves those that are not sent as they are, a new team gets the defaults."""

    share_gpus: _Amount = Field(default=0.0, description="GPUs that are the team's before anybody else's.")
    share_cpus: _Amount = Field(default=0.0, description="CPUs likewise.")
    weight: _Amount = Field(default=1.0, description="Weight for idle resources.")
    caps: Caps = Caps()
    default_limit_s: int = Field(
        default=24 * 3600, ge=60, le=366 * 86400, description="Time limit of jobs that set none."
    )
    idle_s: int = Field(
        default=1800,
        ge=0,
        le=366 * 86400,
        description="Time after which others may have the GPUs of a job that does nothing with them; 0 means never.",
    )
    shells: bool = Field(default=True, description="Whether owners may open shells and JupyterLab in its jobs.")
    budget: Annotated[str, AfterValidator(_budget)] = Field(
        default="", description="GPU hours, as in `500/month`; empty: none."
    )

    def sent(self) -> Mapping[str, Any]:
        """Return the columns that have a new value."""
        return self.model_dump(exclude={"name"}, exclude_none=True, exclude_unset=True)


class NewTeam(TeamValues):
    """A team to add."""

    name: Name


class Team(Answer):
    """A team with its shares; a limit that is not in `caps` does not exist."""

    name: str
    share_gpus: float
    share_cpus: float
    weight: float
    caps: dict[str, dict[str, float | int]]
    shells: bool = True
    default_limit_s: int
    idle_s: int
    budget: str = ""
    used_gpu_hours: float | None = Field(None, description="Used part of the budget, a minute old at most.")


class Teams(Answer):
    """All teams by name."""

    teams: list[Team]


class Token(Answer):
    """A token, without its secret part."""

    id: str = Field(description="The middle part of the token; not a secret.")
    kind: str
    owner: str
    created: Moment
    expires: Moment
    revoked: Moment | None
    used: Moment | None = Field(description="Last use, up to some minutes late.")
    gpu_hours: float | None = Field(None, description="GPU hours of its jobs, after which it submits no more.")


class Tokens(Answer):
    """Tokens in the order of their creation, ended ones included."""

    tokens: list[Token]


class LogInCode(Body):
    """A code of an added person, which is used up."""

    code: Annotated[str, Field(max_length=100)]
    instead_of: Annotated[str, Field(pattern=r"^([a-z0-9]{20})?$")] = Field(
        "", description="Id of a token of the same person, which is revoked."
    )


class LoggedIn(Answer):
    """A new token, which is valid for 90 days and is not shown again."""

    person: str
    token: str = Field(
        repr=False, description="`mlp_<id>_<secret>`, which Ray's clients send as they send the shared token."
    )
    expires: Moment
    mlflow_password: str | None = Field(
        repr=False,
        description="Password of the person at MLflow, with the same name; null if people have no accounts there.",
    )


class Secret(Answer):
    """A secret without its value."""

    name: str
    bytes: int
    changed: Moment
    readable: bool = Field(description="False if the key was lost; jobs then do not get the secret.")


class Secrets(Answer):
    """The person's own secrets by name."""

    secrets: list[Secret]


class MessageAddress(Answer):
    """The address to which a person has messages sent; null for none."""

    url: str | None


class NewMessageAddress(Body):
    """The URL of a webhook, or `mailto:` and an address of a domain that the stack sends mails to; null for none."""

    url: Annotated[str, Field(max_length=2000)] | None
