"""Jobs that schedules submit: one for each time, and one for those missed while the gateway was down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from mlplatform.errors import PlatformError, UnreachableError
from mlplatform_gateway.audit.store import PLATFORM, record
from mlplatform_gateway.database.engine import Store, transaction
from mlplatform_gateway.errors import ForbiddenError
from mlplatform_gateway.jobs.admission import Admission
from mlplatform_gateway.jobs.containment import repeat
from mlplatform_gateway.jobs.cron import on_clock
from mlplatform_gateway.jobs.repeats import plan_next, repetition
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.jobs.services import Services
from mlplatform_gateway.jobs.states import State
from mlplatform_gateway.jobs.store import now
from mlplatform_gateway.jobs.views import check_team
from mlplatform_gateway.people.rights import SHARED
from mlplatform_gateway.people.tokens import owner_of

_CHECK_SECONDS = 5.0
"""Interval between two looks for times that have passed; a schedule counts in minutes."""


class Schedules(Store):
    """Background work that submits what is due, and then calls `submitted`; `run` never returns.

    A time is skipped while the schedule's last job waits to start: else its jobs fill the queue of a full platform.
    """

    def __init__(self, services: Services, admission: Admission, submitted: Callable[[], None]) -> None:
        super().__init__(services.store.engine)
        self._errors, self._admission, self._submitted = services.errors, admission, submitted

    async def run(self) -> None:
        """Submit what is due, forever."""
        await repeat(self.look, lambda: asyncio.sleep(_CHECK_SECONDS), "Jobs of schedules wait")

    async def look(self) -> None:
        """Submit what is due, once; raises UnreachableError while the database is unavailable."""
        for schedule in await self._passed():
            with self._errors.contained(schedule.id):
                await self._submit(schedule)

    async def _submit(self, schedule: JobRow) -> None:
        job, rejected = repetition(schedule, due=schedule.due), ""
        try:
            await self._check_owner(schedule)
            await self._admission.check(job)
        except UnreachableError:
            raise
        except PlatformError as error:
            rejected = str(error)
        await self._fire(schedule.sequence, job, rejected)
        self._submitted()

    @transaction
    def _passed(self, session: Session) -> Sequence[JobRow]:
        """Return the schedules whose next time has passed."""
        scheduled = (JobRow.ended.is_(None), JobRow.state == State.SCHEDULED)
        return session.scalars(select(JobRow).where(*scheduled, JobRow.due <= now()).order_by(JobRow.due)).all()

    @transaction
    def _check_owner(self, session: Session, schedule: JobRow) -> None:
        """Raise ForbiddenError if the owner may no longer submit it; a removal misses what is stored after it."""
        owner = owner_of(session, schedule.person, schedule.since) if schedule.person else SHARED
        if owner is None:
            raise ForbiddenError(f"Its owner {schedule.person} was removed.")
        check_team(owner, schedule)

    @transaction
    def _fire(self, session: Session, sequence: int, job: JobRow, rejected: str) -> None:
        """Store the job of a schedule and the next time, not twice, nor after its stop; one that is rejected waits."""
        schedule = session.get(JobRow, sequence, with_for_update=True)
        if schedule is None or schedule.state != State.SCHEDULED or job.due is None or schedule.due != job.due:
            return
        time = on_clock(job.due, schedule.timezone or "")
        before = (JobRow.origin == schedule.id, JobRow.due.is_not(None), JobRow.ended.is_(None))
        if last := session.scalar(select(JobRow.id).where(*before, JobRow.state == State.WAITING).limit(1)):
            plan_next(schedule, max(now(), job.due), f" The one for {time} was skipped: {last} still waits to start.")
            return
        if rejected:
            schedule.message = f"The job for {time} is submitted later: {rejected}"
            return
        plan_next(
            schedule, max(now(), job.due), f" The last one is {job.id}{f', late for {time}' if job.late else ''}."
        )
        session.add(job)
        session.flush()
        record(session, PLATFORM, "submit", f"job {job.id}", after=job.facts)
