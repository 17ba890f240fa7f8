"""Writing of the ledger, within the transactions that begin, change and end attempts.

An attempt reserves its resources from the transaction that stores it: from then on, the gateway gives its place to no
other job. It holds them until its process has ended, which the gateway may learn later, after an outage for instance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from mlplatform.gateway.usage.schema import UsageRow

PARTS = 10_000
"""Parts of a resource that Ray counts (`kResourceUnitScaling` of `ray/common/constants.h`)."""

LOST = "LOST"
"""Outcome of an attempt that the platform lost (`jobs.states.Outcome`): nobody pays for it."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Kind(StrEnum):
    """Terms on which resources are held."""

    SHARE = "share"
    """Within the share of the team; without teams, everything."""

    BORROWED = "borrowed"
    """Idle resources of other teams."""

    OVERTIME = "overtime"
    """Beyond the job's time limit, because nobody waits for them."""


@dataclass(frozen=True)
class Holder:
    """A job as the ledger names it.

    Attributes:
        job: sequence number.
        job_id: submission id.
        user: name that the submission gave.
        person: account that submitted it; None without accounts.
        team: team that the job belongs to; None without teams.
    """

    job: int
    job_id: str
    user: str
    person: str | None
    team: str | None


def begin(
    session: Session, holder: Holder, attempt: int, amounts: Mapping[str, float], at: datetime, kind: Kind = Kind.SHARE
) -> None:
    """Open the first row of an attempt.

    Args:
        session: transaction that stores the attempt.
        holder: its job.
        attempt: its number.
        amounts: everything that it reserves, by Ray's name of the resource; only CPU and GPU are recorded.
        at: its beginning.
        kind: terms on which it holds them.
    """
    session.add(
        UsageRow(
            job=holder.job,
            attempt=attempt,
            n=1,
            job_id=holder.job_id,
            user=holder.user,
            person=holder.person,
            team=holder.team,
            kind=kind,
            gpus=_parts(amounts, "GPU"),
            cpus=_parts(amounts, "CPU"),
            began=milliseconds(at),
        )
    )


def change(
    session: Session,
    job: int,
    attempt: int,
    at: datetime,
    kind: Kind | None = None,
    amounts: Mapping[str, float] | None = None,
) -> bool:
    """Close the row of an open attempt and open the next one, with another kind or other amounts.

    Args:
        session: transaction of the decision.
        job: sequence number of the job.
        attempt: number of the attempt.
        at: present time.
        kind: new terms; None keeps them.
        amounts: everything that it reserves now, as in `begin`; None keeps them.

    Returns:
        False if the attempt has ended, or has this kind and these amounts already.
    """
    last = _last(session, job, attempt)
    if last is None or last.ended is not None:
        return False
    before = (last.kind, last.gpus, last.cpus)
    gpus, cpus = before[1:] if amounts is None else (_parts(amounts, "GPU"), _parts(amounts, "CPU"))
    after = (kind or Kind(last.kind), gpus, cpus)
    if after == before:
        return False
    last.ended = last.recorded = max(last.began, milliseconds(at))
    holder = Holder(job, last.job_id, last.user, last.person, last.team)
    session.add(
        UsageRow(**vars(holder), attempt=attempt, n=last.n + 1, kind=after[0], gpus=gpus, cpus=cpus, began=last.ended)
    )
    return True


def use(session: Session, job: int, attempt: int, gpu_s: float) -> None:
    """Add measured GPU-seconds to the open row of an attempt.

    Args:
        session: transaction of the measurement.
        job: sequence number of the job.
        attempt: number of the attempt.
        gpu_s: time for which GPUs have computed, one counting for each second in full.
    """
    last = _last(session, job, attempt)
    if last is not None and last.ended is None:
        last.used_gpu_s = (last.used_gpu_s or 0.0) + gpu_s


def end(session: Session, job: int, attempt: int, ended: datetime, recorded: datetime, outcome: str) -> None:
    """Close the rows of an attempt that has ended.

    A row that began after the end, because the gateway had not noticed it yet, becomes empty.

    Args:
        session: transaction that stores the end.
        job: sequence number of the job.
        attempt: number of the attempt.
        ended: end of the attempt; one before its beginning, by a clock that differs, counts as its beginning.
        recorded: present time.
        outcome: of the attempt.
    """
    last = milliseconds(ended)
    for row in session.scalars(_lock(session, job, attempt)):
        row.recorded = max(row.began, milliseconds(recorded)) if row.recorded is None else row.recorded
        row.ended = max(row.began, min(row.recorded, last))
        row.outcome = outcome


def milliseconds(moment: datetime) -> int:
    """Return the Unix time of a moment in whole milliseconds, rounded down."""
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _last(session: Session, job: int, attempt: int) -> UsageRow | None:
    """Return the last row of an attempt, and lock all; a job of days has hundreds."""
    rows = _lock(session, job, attempt)
    return session.scalars(rows.order_by(UsageRow.n.desc()).limit(1)).first()


def _lock(session: Session, job: int, attempt: int) -> Select[UsageRow]:
    """Return a query for the rows of an attempt, which nobody else changes or continues before the transaction ends."""
    rows = select(UsageRow).where(UsageRow.job == job, UsageRow.attempt == attempt)
    # The first row is the lock of all: a statement that waits for a lock does not see rows added meanwhile.
    session.execute(rows.where(UsageRow.n == 1).with_for_update())
    return rows


def _parts(amounts: Mapping[str, float], resource: str) -> int:
    return round(amounts.get(resource, 0) * PARTS)
