"""Tables of people, teams, their tokens and sessions; `migrations/` upgrades them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Double, true
from sqlalchemy.orm import Mapped, mapped_column

from mlplatform_gateway.database.engine import Base


class SessionRow(Base):
    """A browser that has logged in. Neither its id nor the token can be computed from the row."""

    __tablename__ = "sessions"

    digest: Mapped[str] = mapped_column(primary_key=True)
    """SHA-256 of the session's id, which only the browser has."""

    token_digest: Mapped[str]
    """SHA-256 of the token that opened it: a rotation of the token ends the session. If a person's token opened it,
    this is the `digest` of the token's row, and the session belongs to that person."""

    expires: Mapped[datetime]


class PersonRow(Base):
    """A person who uses the platform with tokens of their own."""

    __tablename__ = "people"

    name: Mapped[str] = mapped_column(primary_key=True)
    administrator: Mapped[bool]
    """True for rights over all jobs and settings, as the shared token has."""

    webhook: Mapped[str | None]
    """Address that gets messages about the person's jobs; like a password, if its path has a secret."""

    revocations: Mapped[int] = mapped_column(default=0)
    """Number of the person's tokens that somebody has revoked other than by a log-out; changes MLflow's password."""

    mlflow_revocations: Mapped[int | None]
    """Value of `revocations` with which MLflow has the password; null before it has an account."""

    created: Mapped[datetime]


class TeamRow(Base):
    """A group of people that shares jobs and resources."""

    __tablename__ = "teams"

    name: Mapped[str] = mapped_column(primary_key=True)
    share_gpus: Mapped[float] = mapped_column(Double)
    """Number of GPUs of the team's share."""

    share_cpus: Mapped[float] = mapped_column(Double)
    """Number of CPUs of the team's share."""

    weight: Mapped[float] = mapped_column(Double)
    """Weight among the teams that ask for idle resources."""

    caps: Mapped[dict[str, Any]]
    """Upper limits of the whole `team` and of each `person` in it, as in `{"team": {"gpus": 4}, "person": {"running":
    2}}`; a missing name means no limit."""

    default_limit_s: Mapped[int]
    """Time limit of the team's jobs that set none, in seconds."""

    idle_s: Mapped[int]
    """Time after which others may have the GPUs of a job that does nothing with them, in seconds; 0 means never."""

    shells: Mapped[bool] = mapped_column(server_default=true())
    """True if owners may open shells in its jobs."""

    budget: Mapped[str] = mapped_column(server_default="")
    """GPU hours per period, as in `500/month`; empty for no budget."""

    budget_warned: Mapped[datetime | None]
    """End of the period in which its people were warned about this budget."""

    created: Mapped[datetime]


class MemberRow(Base):
    """Membership of a person in a team."""

    __tablename__ = "members"

    team: Mapped[str] = mapped_column(primary_key=True)
    person: Mapped[str] = mapped_column(primary_key=True, index=True)
    role: Mapped[str]
    """`member` or `lead`."""

    joined: Mapped[datetime]
    """The team that a person joined first gets the jobs that name no team."""


class TokenRow(Base):
    """A token, of which only the id and a digest are stored. Rows remain after the end of the token."""

    __tablename__ = "tokens"

    id: Mapped[str] = mapped_column(primary_key=True)
    """The readable part of the token; not a secret."""

    digest: Mapped[str] = mapped_column(unique=True)
    """SHA-256 of the secret part, which is random, so the digest needs no salt."""

    kind: Mapped[str]
    """`person`, or `job` for that of an attempt."""

    owner: Mapped[str] = mapped_column(index=True)
    """Name of the person; empty for an attempt of a job of the shared token."""

    created: Mapped[datetime]
    expires: Mapped[datetime]
    revoked: Mapped[datetime | None]
    job_id: Mapped[str | None]
    """Job of the attempt that has the token; null for other kinds."""

    attempt: Mapped[int | None]
    """Number of that attempt, with whose end the token ends."""

    used: Mapped[datetime | None]
    """Time of the last use, up to some minutes late."""

    gpu_hours: Mapped[float | None] = mapped_column(Double)
    """GPU hours after which it submits no more jobs; null if unlimited."""


class LoginCodeRow(Base):
    """A code that a person exchanges for a token, once."""

    __tablename__ = "login_codes"

    digest: Mapped[str] = mapped_column(primary_key=True)
    """SHA-256 of the code."""

    person: Mapped[str]
    expires: Mapped[datetime]
    gpu_hours: Mapped[float | None] = mapped_column(Double)


class SecretRow(Base):
    """A value that only the jobs of a person get."""

    __tablename__ = "secrets"

    person: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[str]
    """Encrypted with the key in `secrets/gateway_secrets_key`, which is not in the database."""

    size: Mapped[int]
    """Bytes of the value."""

    changed: Mapped[datetime]
