"""Writing of the ledger: with the transactions that begin and end attempts, and with each measurement.

An attempt is granted its resources from the transaction that stores it: from then on, the gateway gives its place to no
other job. It holds them until its process has ended, which the gateway may learn later, after an outage for instance.
What it holds beyond that is measured every few seconds; a measurement counts for the time back to the one before, so
a kill of the gateway loses at most what was held after the last one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from mlplatform.capacity.resources import rate
from mlplatform_gateway.database.engine import Store, transaction
from mlplatform_gateway.usage.schema import UsageRow

HALF_LIFE_SECONDS = 2 * 24 * 3600.0
PARTS = 10_000
"""Parts of a resource that Ray counts (`kResourceUnitScaling` of `ray/common/constants.h`)."""

LOST = "LOST"
"""Outcome of an attempt that the platform lost (`jobs.states.Outcome`): nobody pays for it."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Decayed:
    """Decayed use at a time, in GPU-seconds, so that recent use counts more than past use.

    For a job that holds a rate `r` from one time to another, the decayed use at a later time is the integral of
    `r * 2 ** -(age / half-life)` over that interval. It has a closed form, so nothing is sampled: the result is the
    same however often and whenever it is asked for. Slurm and HTCondor decay the same way, but in periodic steps.

    Attributes:
        value: the use.
        at: time for which it holds, in seconds since 1970.
        half_life_s: time in which it halves.
    """

    value: float = 0.0
    at: float = 0.0
    half_life_s: float = HALF_LIFE_SECONDS

    def later(self, at: float, held: float = 0.0) -> Decayed:
        """Return the use at a later time.

        Args:
            at: seconds since 1970; an earlier time, of a clock that was set back, counts as no time passed.
            held: rate at which it was charged all the time in between, of `mlplatform.capacity.resources.rate()`.
        """
        passed = max(0.0, at - self.at) / self.half_life_s
        # `expm1` keeps the digits that 1 - 2 ** -x would lose for the half second between two plans.
        gained = -math.expm1(-passed * math.log(2)) * self.half_life_s / math.log(2)
        return Decayed(self.value * 2**-passed + held * gained, max(at, self.at), self.half_life_s)


@dataclass(frozen=True)
class Sample:
    """Measurement of an attempt.

    Attributes:
        excess_gpus: GPUs that it holds beyond the granted ones.
        excess_cpus: CPUs, in the same way.
        borrowed: whether it holds idle resources of other teams from now on; None if that stays as it is.
        computing: GPUs that compute for it, as in 0.5 for one of two halves; None if nothing measures them.
    """

    excess_gpus: float = 0.0
    excess_cpus: float = 0.0
    borrowed: bool | None = None
    computing: float | None = None


class Samples(Store):
    """Writer of measurements; raises UnreachableError while the database is unavailable."""

    @transaction
    def add(self, session: Session, at: datetime, samples: Mapping[tuple[int, int], Sample]) -> None:
        """Add measurements of open attempts; those of attempts that have ended meanwhile are left out.

        Args:
            samples: by the job's sequence number and the number of the attempt.
        """
        rows = select(UsageRow).where(UsageRow.ended.is_(None)).order_by(UsageRow.job, UsageRow.attempt)
        for row in session.scalars(rows.with_for_update()):
            if sample := samples.get((row.job, row.attempt)):
                _add(row, milliseconds(at), sample)


def begin(session: Session, row: UsageRow, amounts: Mapping[str, float], at: datetime, borrowed: bool = False) -> None:
    """Open the row of an attempt.

    Args:
        row: names the attempt and its job.
        amounts: everything that it is granted, by Ray's name of the resource; only CPU and GPU are recorded.
        borrowed: whether these are idle resources of other teams.
    """
    row.gpus, row.cpus = (round(amounts.get(name, 0) * PARTS) for name in ("GPU", "CPU"))
    row.began = row.measured = milliseconds(at)
    row.most_gpus, row.most_cpus, row.borrowed = row.gpus, row.cpus, borrowed
    session.add(row)


def end(session: Session, job: int, attempt: int, ended: datetime, recorded: datetime, outcome: str) -> None:
    """Close the row of an attempt that has ended.

    Args:
        job: sequence number of the job.
        ended: end of the attempt; one before its beginning, by a clock that differs, counts as its beginning.
        recorded: present time.
    """
    rows = select(UsageRow).where(UsageRow.job == job, UsageRow.attempt == attempt)
    row = session.scalars(rows.with_for_update()).one()
    row.recorded = max(row.began, milliseconds(recorded))
    row.ended = max(row.began, min(row.recorded, milliseconds(ended)))
    row.outcome = outcome
    _add(row, row.ended, Sample())


def milliseconds(moment: datetime) -> int:
    """Return the Unix time of a moment in whole milliseconds, rounded down."""
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _add(row: UsageRow, at: int, sample: Sample) -> None:
    """Count a measurement for the time since the last one; a row that began as borrowed was so until now."""
    excess = round(sample.excess_gpus * PARTS), round(sample.excess_cpus * PARTS)
    gpus, cpus = row.gpus + excess[0], row.cpus + excess[1]
    passed = max(0, at - row.measured)
    row.excess_gpu += excess[0] * passed
    row.excess_cpu += excess[1] * passed
    row.most_gpus, row.most_cpus = max((row.most_gpus, row.most_cpus), (gpus, cpus))
    held = rate(gpus / PARTS, cpus / PARTS) if row.borrowed else 0.0
    row.borrowed_use = Decayed(row.borrowed_use, row.measured / 1000).later(at / 1000, held).value
    row.borrowed_gpu += gpus * passed * row.borrowed
    if sample.computing is not None:
        row.used_gpu_s = (row.used_gpu_s or 0.0) + sample.computing * passed / 1000
    if sample.borrowed is not None:
        row.borrowed = sample.borrowed
    row.measured += passed
