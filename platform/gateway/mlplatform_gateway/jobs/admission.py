"""Checks that a job passes before it enters the queue, whether it is new or resumed."""

from __future__ import annotations

from contextlib import suppress

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from mlplatform.capacity.resources import Request, Shortage
from mlplatform.errors import UnreachableError
from mlplatform_gateway.database.engine import Store, transaction
from mlplatform_gateway.errors import ForbiddenError, QueueFullError
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.jobs.services import Services
from mlplatform_gateway.jobs.states import State
from mlplatform_gateway.jobs.store import now
from mlplatform_gateway.jobs.submission import request_of
from mlplatform_gateway.monitoring.disks import Disks
from mlplatform_gateway.people.schema import TeamRow, TokenRow
from mlplatform_gateway.queue.planner import feasibility
from mlplatform_gateway.usage.report import gpu_hours_of

_MOST_SCHEDULES = 20
"""Schedules of one person, or of the shared token."""


class Admission(Store):
    """Checks of disks, of limits (waiting jobs, schedules, the GPU hours of a token), and of nodes."""

    def __init__(self, services: Services, disks: Disks) -> None:
        super().__init__(services.store.engine)
        self._cluster = services.cluster
        self._driver_labels = services.driver_labels
        self._disks = disks

    async def check(self, job: JobRow) -> None:
        """Reject a job that must not enter the queue.

        Args:
            job: with its owner and team.

        Raises:
            DiskFullError: a disk has too little room.
            ForbiddenError: the token with which it is submitted has used its GPU hours.
            QueueFullError: the owner or the team has as many waiting jobs or schedules as allowed.
            CapacityError: the nodes can never run it, and it does not wait for one that can.
            UnreachableError: the database is unavailable.
        """
        await self._disks.check()
        await self.check_limits(job)
        if not job.wait_for_capacity and self._is_specific(request := request_of(job)):
            with suppress(UnreachableError):
                await self.shortage(request)

    async def shortage(self, request: Request) -> Shortage | None:
        """Return what a job has to wait for; None if it fits now.

        Raises:
            CapacityError: the nodes can never provide what its entry point or its workers request.
            UnreachableError: no node is known.
        """
        nodes = await self._cluster.nodes()
        if not nodes:
            raise UnreachableError("The gateway has not seen a node of Ray yet; try again when Ray has started.")
        labels = {**request.labels, **self._driver_labels}
        return feasibility.check(nodes, request.entrypoint, request.workers, labels)

    def _is_specific(self, request: Request) -> bool:
        """Return whether a job requests anything; if not, Ray need not list its nodes, which takes 50 ms."""
        labels = request.labels.items() - self._driver_labels.items()
        return bool(request.workers or request.entrypoint.amounts() or labels)

    @transaction
    def check_limits(self, session: Session, job: JobRow) -> None:
        """Reject a job that would exceed a limit; jobs that are submitted at the same moment may exceed it together.

        Raises:
            ForbiddenError: the token has used its GPU hours.
            QueueFullError: the team or the person has as many waiting jobs or schedules as allowed.
        """
        _check_token(session, job)
        if job.schedule:
            of_person = (JobRow.state == State.SCHEDULED, JobRow.person == job.person, JobRow.id != job.id)
            if (session.scalar(select(func.count()).select_from(JobRow).where(*of_person)) or 0) >= _MOST_SCHEDULES:
                raise QueueFullError(
                    f"{job.person or 'The shared token'} has {_MOST_SCHEDULES} schedules, the most that are allowed; "
                    "`mlplatform queue` lists them, and `mlplatform stop` ends one."
                )
            return
        team = session.get(TeamRow, job.team) if job.team else None
        if team is None:
            return
        states = (State.WAITING, State.HELD)
        of_team = (JobRow.ended.is_(None), JobRow.state.in_(states), JobRow.team == team.name)
        for whose, name, which in (
            ("person", job.person, (*of_team, JobRow.person == job.person)),
            ("team", f"Team {team.name}", of_team),
        ):
            most = team.caps.get(whose, {}).get("waiting")
            waiting = session.scalar(select(func.count()).select_from(JobRow).where(*which)) or 0
            if most is not None and waiting >= most:
                raise QueueFullError(
                    f"{name} has {waiting} waiting jobs, of at most {most} in team {team.name}; submit the job when "
                    "others have started, or end some with `mlplatform stop`."
                )


def _check_token(session: Session, job: JobRow) -> None:
    token = session.get(TokenRow, job.token) if job.token else None
    most = token.gpu_hours if token else None
    if token and most is not None and (used := gpu_hours_of(session, token.id, now())) >= most:
        raise ForbiddenError(
            f"The jobs of token {token.id} have used {used:.1f} of its {most:g} GPU hours, so it submits no "
            f"more; ask an administrator for another code (`mlplatform people add {token.owner} --gpu-hours N`)."
        )
