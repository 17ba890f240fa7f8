"""Checks that a job passes before it enters the queue, whether it is new or resumed."""

from __future__ import annotations

from sqlalchemy import Engine

from mlplatform.gateway.control.disks import Disks
from mlplatform.gateway.control.reconciler import Reconciler
from mlplatform.gateway.control.waiting_limit import WaitingLimit
from mlplatform.gateway.jobs.schema import JobRow
from mlplatform.gateway.jobs.submission import request_of


class Admission:
    """Checks of disks, of the upper limits of waiting jobs, and of the nodes."""

    def __init__(self, engine: Engine, reconciler: Reconciler, disks: Disks) -> None:
        self._limit = WaitingLimit(engine)
        self._reconciler = reconciler
        self._disks = disks

    async def check(self, job: JobRow) -> None:
        """Reject a job that must not enter the queue.

        Args:
            job: with its owner and team.

        Raises:
            DiskFullError: a disk has too little room.
            QueueFullError: the owner or the team has as many waiting jobs as allowed.
            CapacityError: no node can ever run it, and it does not wait for one that can.
            UnreachableError: the database is unavailable.
        """
        await self._disks.check()
        await self._limit.check(job)
        if (
            not job.wait_for_capacity
            and self._reconciler.needs_check(job)
            and (free := await self._reconciler.free_capacity())
        ):
            free.check(request_of(job))
