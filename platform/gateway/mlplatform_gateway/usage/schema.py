"""Table of the ledger; `migrations/` upgrades it."""

from __future__ import annotations

from sqlalchemy import BigInteger, Float, Index
from sqlalchemy.orm import Mapped, mapped_column

from mlplatform_gateway.database.engine import Base


class UsageRow(Base):
    """Time and resources of an attempt: what it was granted, and what was measured beyond that.

    The granted amounts and the times are integers: their products and sums are exact in each database and in any
    order. A row refers to no other table, because it outlives its job.
    """

    __tablename__ = "usage"
    # A report reads the rows that have ended in its time, and those that have not ended.
    __table_args__ = (Index("ended_usage", "ended"),)

    job: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    """Sequence number of the job, which no other job ever gets."""

    attempt: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[str]
    """Submission id of the job; once that is deleted, another may get it."""

    user: Mapped[str]
    """Name that the submission gave."""

    person: Mapped[str | None]
    """Account that submitted the job; None without accounts."""

    team: Mapped[str | None]
    token: Mapped[str | None] = mapped_column(index=True)
    """Id of the token with which the job was submitted."""

    gpus: Mapped[int] = mapped_column(BigInteger)
    """Granted GPUs in ten-thousandths, the smallest part that Ray counts."""

    cpus: Mapped[int] = mapped_column(BigInteger)
    """Granted CPUs in ten-thousandths."""

    began: Mapped[int] = mapped_column(BigInteger)
    """Unix time in milliseconds, as are the other times."""

    ended: Mapped[int | None] = mapped_column(BigInteger)
    """End of the attempt; None until that is stored."""

    recorded: Mapped[int | None] = mapped_column(BigInteger)
    """Time at which `ended` was stored; after an outage it is later than `ended`."""

    outcome: Mapped[str | None]
    """Outcome of the attempt, once it has ended. LOST: nobody pays for it."""

    measured: Mapped[int] = mapped_column(BigInteger)
    """Time up to which the following sums count."""

    excess_gpu: Mapped[int] = mapped_column(BigInteger, default=0)
    """GPUs that were held beyond the granted ones, in ten-thousandths times milliseconds."""

    excess_cpu: Mapped[int] = mapped_column(BigInteger, default=0)
    """CPUs, in the same way."""

    most_gpus: Mapped[int] = mapped_column(BigInteger)
    """Most GPUs that it held at a time, in ten-thousandths."""

    most_cpus: Mapped[int] = mapped_column(BigInteger)
    """CPUs that it held at that time; the most of them if it held as many GPUs several times."""

    borrowed: Mapped[bool]
    """It holds idle resources of other teams."""

    borrowed_gpu: Mapped[int] = mapped_column(BigInteger, default=0)
    """GPUs that were borrowed, in ten-thousandths times milliseconds."""

    borrowed_use: Mapped[float] = mapped_column(Float, default=0.0)
    """Everything that was borrowed, decayed to `measured`, as `usage.ledger.Decayed` counts it."""

    used_gpu_s: Mapped[float | None] = mapped_column(Float)
    """Measured GPU-seconds; None if nothing has measured them."""
