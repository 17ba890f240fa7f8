"""Control loop of the gateway: compares stored jobs with Ray's, and starts, ends and restarts attempts.

Each step is written to the store before and after it touches Ray, and may be repeated: a gateway that was killed at any
point continues from the store's contents. Nothing else starts or ends attempts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from mlplatform.errors import UnreachableError
from mlplatform.text.throttle import ThrottledWarning
from mlplatform_gateway.errors import PackageError, RefusedError
from mlplatform_gateway.jobs.attempt_tokens import AttemptTokens
from mlplatform_gateway.jobs.ending import Finisher, HangingStarts
from mlplatform_gateway.jobs.housekeeping import Housekeeping
from mlplatform_gateway.jobs.schema import AttemptRow, JobRow
from mlplatform_gateway.jobs.services import Services
from mlplatform_gateway.jobs.starting import Bursts, Limits, Starter
from mlplatform_gateway.jobs.states import State, judge
from mlplatform_gateway.jobs.watcher import InfeasibleRequests, Watcher
from mlplatform_gateway.monitoring.outages import HEAD
from mlplatform_gateway.ray.head import ClusterSnapshot
from mlplatform_gateway.ray.utilisation import UtilisationSource

_STEP_SECONDS, _LONGEST_STEP_SECONDS = 0.2, 0.5
"""Pauses between steps, which take 15 ms with 10 jobs on two nodes."""

_PAUSE_PER_STEP = 4
"""Ratio of a pause to the step before it, half a second at most: steps take a fifth of the time."""

_RETRY_SECONDS = 0.5
_IDLE_SECONDS = 10.0

_FORGOTTEN_SECONDS = 15.0
"""A starting head lists no jobs until it has loaded its state."""

_STOP_AGAIN_SECONDS = 5.0

_log = logging.getLogger(__name__)


class Reconciler:
    """Control loop, one per platform; `run` never returns."""

    def __init__(self, services: Services, use: UtilisationSource, tokens: AttemptTokens, limits: Limits) -> None:
        self._services = services
        self._warn = ThrottledWarning(_log)
        self._housekeeping = Housekeeping(services)
        self.starter = Starter(services, tokens, limits)
        self._finisher = Finisher(services, self._housekeeping.notice_end)
        self._infeasible = InfeasibleRequests(services)
        self._watcher = Watcher(services, self.starter.queue, use, limits.rules.grace_s)
        self.bursts = Bursts()
        self._wake, self._some_open = asyncio.Event(), asyncio.Event()
        self._head_was_down = True
        self._busy: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._ending: set[str] = set()
        self._missing: dict[str, float] = {}
        self._stopped: dict[str, float] = {}
        self._hanging = HangingStarts(limits.start_s)
        self._open: set[str] = set()

    def wake(self) -> None:
        """Run the next step now, because something has changed."""
        self._wake.set()

    async def run(self) -> None:
        """Run all loops forever."""
        async with asyncio.TaskGroup() as group:
            for step in (self._step_and_wait, *self._housekeeping.passes):
                group.create_task(self._forever(step))
            for look in (self._infeasible.look, self._watcher.look):
                group.create_task(self._forever(partial(look, self._some_open)))
            group.create_task(self._services.outages.watch(self._some_open))

    async def stop(self, job: JobRow) -> None:
        """Stop the attempt of a job whose stop was requested; repeated every 5 s until the attempt has ended.

        Raises:
            UnreachableError: Ray's head is unavailable.
        """
        if State(job.state).final:
            await self._finisher.close_log(job.id)
            self._housekeeping.notice_end()
        elif attempt := job.open_attempt:
            self._stopped[job.id] = time.monotonic()
            await self._services.head.stop(attempt.ray_submission_id)

    async def settle(self, job: JobRow) -> None:
        """Wait for the work that follows a job's end, and end its runs: once it is deleted, they cannot be found."""
        if tasks := [task for (job_id, _), task in self._busy.items() if job_id == job.id]:
            await asyncio.wait(tasks)
        if not job.runs_closed:
            with suppress(UnreachableError):
                await self._housekeeping.close_runs_of(job)

    async def _forever(self, step: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await step()
            except UnreachableError as error:
                self._warn("%s", error)
                await asyncio.sleep(_RETRY_SECONDS)
            except Exception:
                _log.exception("A step failed and will be retried.")
                await asyncio.sleep(_RETRY_SECONDS)

    async def _step_and_wait(self) -> None:
        self._wake.clear()
        began = time.monotonic()
        open_jobs = await self._step()
        rest = min(_PAUSE_PER_STEP * (time.monotonic() - began), _LONGEST_STEP_SECONDS)
        # Even if there is news already: each job causes three wake-ups, and every step makes Ray list all jobs.
        await asyncio.sleep(rest)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(_STEP_SECONDS - rest, 0) if open_jobs else _IDLE_SECONDS):
                await self._wake.wait()

    async def _step(self) -> bool:
        jobs: Sequence[JobRow] = await self._services.store.open_jobs()
        (self._some_open.set if jobs else self._some_open.clear)()
        await self._release_ended({job.id for job in jobs})
        try:
            cluster = await self._services.cluster.refresh()
        except UnreachableError:
            self._services.outages.note(HEAD)
            self._head_was_down = True
            return bool(jobs)
        if self._head_was_down:
            with suppress(UnreachableError):  # the agent starts after the dashboard
                await self._services.head.start_job_manager()
                self._head_was_down = False
        waiting = [job for job in jobs if State(job.state).waits]
        active = [(job, attempt) for job in jobs if (attempt := job.open_attempt)]
        for job, attempt in active:
            with self._services.errors.contained(job.id):
                await self._watch(job, attempt, cluster)
        if self.bursts.may_begin():
            # `begin` plans and stores each attempt; `starter.hand_over` submits it to Ray, in a task of its own.
            async for job, attempt in self.starter.begin(waiting, active, self._ending, cluster):
                self._spawn(job, attempt, self._hand_over(job, attempt))
        return bool(jobs)

    async def _release_ended(self, still_open: set[str]) -> None:
        """Close the logs of jobs that have ended: a failing database may store an end and still report an error."""
        gone, self._open = self._open - still_open, still_open
        for job_id in gone:
            await self._finisher.close_log(job_id)
        if gone:
            self._housekeeping.notice_end()

    async def _watch(self, job: JobRow, attempt: AttemptRow, cluster: ClusterSnapshot) -> None:
        if (job.id, attempt.number) in self._busy:
            return
        ray = cluster.jobs.get(attempt.ray_submission_id)
        if ray is None and not self._forgotten(job, attempt):
            if not attempt.accepted and not job.stop_requested:
                self._spawn(job, attempt, self._hand_over(job, attempt))
            return
        self._missing.pop(attempt.ray_submission_id, None)
        node = ray["driver_node_id"] if ray else attempt.node_id
        if ray and _has_news(attempt, ray):
            # Also if Ray lists the attempt as ended: its log is read from that node.
            name = cluster.names.get(node or "")
            await self._services.store.seen(job.id, attempt.number, ray, name)
            attempt.node = name or attempt.node
        died = cluster.dead.get(node or "")
        if judge(ray, died is not None) is not None:
            self._ending.add(job.id)
            self._spawn(job, attempt, self._finisher.finish(job, attempt, ray, died))
        elif ray and (work := self._next_work(job, attempt, ray)):
            self._spawn(job, attempt, work)
        elif job.stop_requested and time.monotonic() - self._stopped.get(job.id, 0) > _STOP_AGAIN_SECONDS:
            with suppress(UnreachableError):  # it is repeated; the step continues with the other jobs
                await self.stop(job)

    def _forgotten(self, job: JobRow, attempt: AttemptRow) -> bool:
        """Return whether an attempt has been missing from Ray's list for too long to reappear."""
        if not attempt.accepted and not job.stop_requested:
            return False
        since = self._missing.setdefault(attempt.ray_submission_id, time.monotonic())
        return time.monotonic() - since > _FORGOTTEN_SECONDS

    def _next_work(self, job: JobRow, attempt: AttemptRow, ray: dict[str, Any]) -> Coroutine[Any, Any, None] | None:
        """Return what to do with an open attempt: to end a start that may hang, or to tell it to leave."""
        pending = ray["status"] == "PENDING"
        if pending and (reason := self._hanging.reason(job, attempt)):
            return self._finisher.give_up(job, attempt, ray, reason)
        if pending and self._hanging.may_be_stranded(attempt):
            return self._find_supervisor(job, attempt)
        return self.starter.departures.work(job, attempt)

    async def _find_supervisor(self, job: JobRow, attempt: AttemptRow) -> None:
        """End an attempt without a supervisor: a head killed before it created one leaves the job pending forever."""
        if not await self._services.head.has_supervisor(attempt.ray_submission_id):
            await self._finisher.finish(job, attempt, None, None)

    async def _hand_over(self, job: JobRow, attempt: AttemptRow) -> None:
        try:
            await self.starter.hand_over(job, attempt)
        except (RefusedError, PackageError) as error:
            await self._finisher.refuse(job, attempt, str(error))

    def _spawn(self, job: JobRow, attempt: AttemptRow, work: Coroutine[Any, Any, None]) -> None:
        """Run work that takes longer than a step in a separate task, one at a time per attempt."""
        key = (job.id, attempt.number)
        task = asyncio.create_task(self._guarded(job.id, work))
        self._busy[key] = task

        def done(_: asyncio.Task[None]) -> None:
            del self._busy[key]
            self._ending.discard(job.id)
            self._stopped.pop(job.id, None)
            self.wake()

        task.add_done_callback(done)

    async def _guarded(self, job_id: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            with self._services.errors.contained(job_id):
                await work
                return
        except UnreachableError as error:
            self._warn("%s", error)
        await asyncio.sleep(_RETRY_SECONDS)


def _has_news(attempt: AttemptRow, ray: dict[str, Any]) -> bool:
    """Return whether Ray's details of an attempt differ from the stored ones."""
    running = ray["status"] == "RUNNING"
    known = (attempt.accepted, attempt.running, attempt.node_id, attempt.ray_job_id)
    return known != (True, running or attempt.running, ray["driver_node_id"], ray["job_id"]) or (
        running and attempt.node is None
    )
