"""Table of the ledger; `migrations/` creates and upgrades it."""

from __future__ import annotations

from sqlalchemy import BigInteger, Float, Index
from sqlalchemy.orm import Mapped, mapped_column

from mlplatform.gateway.database.base import Base


class UsageRow(Base):
    """A time in which an attempt reserved the same resources on the same terms.

    Amounts and times are integers: their products and sums are exact in each database and in any order. A row refers to
    no other table, because it outlives its job.
    """

    __tablename__ = "usage"
    # A report reads the rows that have ended in its time, and those that have not ended.
    __table_args__ = (Index("ended_usage", "ended"),)

    job: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    """Sequence number of the job, which no other job ever gets."""

    attempt: Mapped[int] = mapped_column(primary_key=True)
    n: Mapped[int] = mapped_column(primary_key=True)
    """Order of the rows of an attempt, from 1."""

    job_id: Mapped[str]
    """Submission id of the job; once that is deleted, another may get it."""

    user: Mapped[str]
    """Name that the submission gave."""

    person: Mapped[str | None]
    """Account that submitted the job; None without accounts."""

    team: Mapped[str | None]
    kind: Mapped[str]
    """Terms, a `ledger.Kind`."""

    gpus: Mapped[int] = mapped_column(BigInteger)
    """Reserved GPUs in ten-thousandths, the smallest part that Ray counts."""

    cpus: Mapped[int] = mapped_column(BigInteger)
    """Reserved CPUs in ten-thousandths."""

    began: Mapped[int] = mapped_column(BigInteger)
    """Unix time in milliseconds, as are the two other times."""

    ended: Mapped[int | None] = mapped_column(BigInteger)
    """End; not after the end of the attempt, and None until that, or a change of the terms, is stored."""

    recorded: Mapped[int | None] = mapped_column(BigInteger)
    """Time at which `ended` was stored; after an outage it is later than `ended`."""

    outcome: Mapped[str | None]
    """Outcome of the attempt, once it has ended. LOST: nobody pays for it."""

    used_gpu_s: Mapped[float | None] = mapped_column(Float)
    """Measured GPU-seconds; None if nothing has measured them."""
