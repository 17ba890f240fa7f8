"""Starts jobs, watches their attempts and starts lost ones again: the only place that changes what runs.

Each step is written to the store before and after it touches Ray, and every step may be repeated: a gateway that was
killed anywhere goes on with what the store says.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Protocol

import anyio.to_thread

from mlplatform import advice as advice_module
from mlplatform.errors import CapacityError, PlatformError, UnreachableError
from mlplatform.gateway.control.containment import JobErrors
from mlplatform.gateway.control.infeasible import InfeasibleRequests
from mlplatform.gateway.control.outages import HEAD, LOOK_BACK_SECONDS, Outages
from mlplatform.gateway.errors import PackageError, RefusedError
from mlplatform.gateway.jobs.packages import Packages, package_names
from mlplatform.gateway.jobs.schema import AttemptRow, JobRow
from mlplatform.gateway.jobs.states import Observation, Outcome, State, Verdict, judge
from mlplatform.gateway.jobs.store import JobStore, now
from mlplatform.gateway.jobs.submission import renamed_keys, request_of, resources_of
from mlplatform.gateway.logs.store import JobLogs
from mlplatform.gateway.upstream.mlflow import close_runs
from mlplatform.gateway.upstream.ray import ClusterSnapshot, RayHead
from mlplatform.mlflow_rest import AsyncMlflowRest
from mlplatform.scheduling.free_capacity import YOUNG_SECONDS, FreeCapacity
from mlplatform.storage import addresses, fence, objects

_STEP_SECONDS = 0.5

_IDLE_SECONDS = 10.0

_FRESH_SECONDS = 2.0
"""How old an answer of Ray's may be where a person waits for it."""

_FORGOTTEN_SECONDS = 15.0
"""A head that starts knows no jobs until it has read its memory."""

_STRANDED_SECONDS = 60.0

_STOP_AGAIN_SECONDS = 5.0

_NODES_SECONDS = 30.0

_CLEAN_SECONDS = 30.0

_CLEAN_PACKAGES_SECONDS = 3600.0

_INFEASIBLE_SECONDS = 10.0

_KEPT_IN_RAY = 100

_CLOSE_AGAIN_SECONDS = 5.0

_WARN_SECONDS = 30.0

_SETTLE_SECONDS = 10.0

_SETTLE_LOST_SECONDS = 2.0

_log = logging.getLogger(__name__)


class Config(Protocol):
    """What the reconciler needs of the settings."""

    @property
    def starts(self) -> int: ...
    @property
    def driver_labels(self) -> dict[str, str]: ...


class Reconciler:
    """One a platform; `run` never ends."""

    def __init__(
        self,
        config: Config,
        store: JobStore,
        head: RayHead,
        logs: JobLogs,
        packages: Packages,
        outages: Outages,
        tracking: AsyncMlflowRest | None,
    ) -> None:
        self._config = config
        self._store = store
        self._head = head
        self._logs = logs
        self._packages = packages
        self._outages = outages
        self._infeasible = InfeasibleRequests(store, head, logs)
        self._tracking = tracking
        self._errors = JobErrors()
        self._wake = asyncio.Event()
        self._some_open = asyncio.Event()
        self._some_ended = asyncio.Event()
        self._cluster: ClusterSnapshot | None = None
        self._looked = self._remembered = float("-inf")
        self._warned = float("-inf")
        self._head_was_away = True
        self._busy: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._ending: set[str] = set()
        self._missing: dict[str, float] = {}
        self._stopped: dict[str, float] = {}
        self._sought: dict[str, float] = {}
        self._open: set[str] = set()

    def wake(self) -> None:
        """Something has changed: look now."""
        self._wake.set()

    async def run(self) -> None:
        """Go on for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._forever(self._step_and_wait))
            group.create_task(self._forever(self._look_for_infeasible))
            group.create_task(self._forever(self._close_runs))
            group.create_task(self._forever(self._clean_ray))
            group.create_task(self._forever(self._clean_packages))
            group.create_task(self._outages.watch(self._some_open))

    async def look(self) -> ClusterSnapshot:
        """What Ray says now, or has said within the last two seconds."""
        if self._cluster is None or time.monotonic() - self._looked > _FRESH_SECONDS:
            return await self._look()
        return self._cluster

    def needs_check(self, job: JobRow) -> bool:
        """Whether a job asks for more than any entry point gets; looking at the nodes takes Ray 50 ms."""
        labels = job.entrypoint_request.get("entrypoint_label_selector") or {}
        return bool(
            job.workers
            or resources_of(job.entrypoint_request).amounts()
            or labels.items() - self._config.driver_labels.items()
        )

    async def free_capacity(self) -> FreeCapacity | None:
        """The nodes' room as well as it is known; None where nothing is known of any node."""
        try:
            nodes = (await self.look()).nodes
        except UnreachableError:
            nodes = await self._store.remembered_nodes(YOUNG_SECONDS * 10)
        return FreeCapacity(nodes, self._config.driver_labels) if nodes else None

    async def stop(self, job: JobRow) -> None:
        """Ask the attempt of a job that shall stop to end; repeated by the steps until it has."""
        if State(job.state).final:
            await _if_kept(self._logs.close(job.id))
            self._some_ended.set()
        elif attempt := job.open_attempt:
            self._stopped[job.id] = time.monotonic()
            await self._head.stop(attempt.ray_submission_id)

    async def settle(self, job: JobRow) -> None:
        """Wait for what follows a job's end, and give its runs theirs: once it is deleted, nobody knows of them."""
        if tasks := [task for (job_id, _), task in self._busy.items() if job_id == job.id]:
            await asyncio.wait(tasks)
        if not job.runs_closed:
            with suppress(UnreachableError):
                await self._close_runs_of(job)

    # --- Steps ---

    async def _forever(self, step: Any) -> None:
        while True:
            try:
                await step()
            except UnreachableError as error:
                self._warn(error)
                await asyncio.sleep(_STEP_SECONDS)
            except Exception:  # what one job brings about must not keep the others from running
                _log.exception("A step failed and is repeated.")
                await asyncio.sleep(_STEP_SECONDS)

    def _warn(self, error: Exception) -> None:
        """Say it once in a while: steps are repeated twice a second."""
        if time.monotonic() - self._warned > _WARN_SECONDS:
            self._warned = time.monotonic()
            _log.warning("%s", error)

    async def _step_and_wait(self) -> None:
        self._wake.clear()
        open_jobs = await self._step()
        try:
            async with asyncio.timeout(_STEP_SECONDS if open_jobs else _IDLE_SECONDS):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _step(self) -> bool:
        jobs: Sequence[JobRow] = await self._store.open_jobs()
        (self._some_open.set if jobs else self._some_open.clear)()
        await self._part_with({job.id for job in jobs})
        try:
            cluster = await self._look()
        except UnreachableError:
            self._outages.note(HEAD)
            self._head_was_away = True
            return bool(jobs)
        if self._head_was_away:
            with suppress(UnreachableError):  # the agent starts after the dashboard
                await self._head.poke()
                self._head_was_away = False
        waiting, active = self._sorted(jobs)
        for job, attempt in active:
            with self._errors.contained(job.id):
                await self._watch(job, attempt, cluster)
        await self._start(waiting, active, cluster)
        return bool(jobs)

    def _sorted(self, jobs: Sequence[JobRow]) -> tuple[list[JobRow], list[tuple[JobRow, AttemptRow]]]:
        """Jobs that wait, and those that have an attempt, with it."""
        waiting, active = [], []
        for job in jobs:
            with self._errors.contained(job.id):
                state = State(job.state)
                if state.waits:
                    waiting.append(job)
                elif state.has_attempt and (attempt := job.open_attempt):
                    active.append((job, attempt))
                elif state.has_attempt:
                    # Nothing writes such a row; a hand that corrects the database may.
                    self._errors.log(
                        job.id,
                        f"Job {job.id} is {state} without an attempt; end it with `mlplatform stop {job.id}` and "
                        "submit it again.",
                    )
        return waiting, active

    async def _part_with(self, still_open: set[str]) -> None:
        """End what hangs on jobs that have ended: a database that went away may have written an end and not said so."""
        gone, self._open = self._open - still_open, still_open
        for job_id in gone:
            self._sought.pop(job_id, None)
            await _if_kept(self._logs.close(job_id))
        if gone:
            self._some_ended.set()

    async def _look(self) -> ClusterSnapshot:
        self._cluster, self._looked = await self._head.look(), time.monotonic()
        if self._looked - self._remembered > _NODES_SECONDS:
            await self._store.remember_nodes(self._cluster.nodes)
            self._remembered = self._looked
        return self._cluster

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
            # Also of one that has ended meanwhile: its log is waited for from the node that it was on.
            name = cluster.names.get(node or "")
            await self._store.seen(job.id, attempt.number, ray, name)
            attempt.node = name or attempt.node
        verdict = judge(Observation(ray, node in cluster.dead))
        if verdict is not None:
            self._ending.add(job.id)
            self._spawn(job, attempt, self._finish(job, attempt, ray, node in cluster.dead))
            return
        if ray and ray["status"] == "PENDING" and self._may_be_stranded(job, attempt):
            self._spawn(job, attempt, self._look_for_supervisor(job, attempt))
            return
        if job.stop_requested and time.monotonic() - self._stopped.get(job.id, 0) > _STOP_AGAIN_SECONDS:
            with suppress(UnreachableError):  # the other jobs of this step do not wait for it
                await self.stop(job)

    def _forgotten(self, job: JobRow, attempt: AttemptRow) -> bool:
        """Whether Ray, which may have had the attempt, has not known it for so long that it will not find it again."""
        if not attempt.accepted and not job.stop_requested:
            return False
        since = self._missing.setdefault(attempt.ray_submission_id, time.monotonic())
        return time.monotonic() - since > _FORGOTTEN_SECONDS

    def _may_be_stranded(self, job: JobRow, attempt: AttemptRow) -> bool:
        """Whether it is time to ask for the supervisor of an attempt that has been pending for long."""
        asked = self._sought.get(job.id, float("-inf"))
        old = (now() - attempt.created).total_seconds() > _STRANDED_SECONDS
        if not old or time.monotonic() - asked < _STRANDED_SECONDS:
            return False
        self._sought[job.id] = time.monotonic()
        return True

    async def _look_for_supervisor(self, job: JobRow, attempt: AttemptRow) -> None:
        """A head that is killed between writing a job down and making its supervisor leaves it pending for ever."""
        if not await self._head.has_supervisor(attempt.ray_submission_id):
            await self._finish(job, attempt, None, False)

    def _spawn(self, job: JobRow, attempt: AttemptRow, work: Coroutine[Any, Any, None]) -> None:
        """Do what takes longer beside the steps, one thing at a time for each attempt."""
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
            with self._errors.contained(job_id):
                await work
                return
        except UnreachableError as error:
            self._warn(error)
        await asyncio.sleep(_STEP_SECONDS)

    # --- The start ---

    async def _start(
        self, waiting: Sequence[JobRow], active: Sequence[tuple[JobRow, AttemptRow]], cluster: ClusterSnapshot
    ) -> None:
        if not waiting:
            return
        room = FreeCapacity(cluster.nodes, self._config.driver_labels)
        for job, attempt in active:
            if (now() - attempt.created).total_seconds() < YOUNG_SECONDS:
                with self._errors.contained(job.id):
                    room.take(request_of(job))
        # One that has ended before it was seen to run waits for its log only.
        starting = [job for job, _ in active if not State(job.state).runs and job.id not in self._ending]
        places = self._config.starts - len(starting)
        if any(map(_lost_lately, waiting)):
            await self._outages.probe()
        for job in waiting:
            with self._errors.contained(job.id):
                if places > 0 and job.not_before <= now() and await self._begin(job, room):
                    places -= 1

    async def _begin(self, job: JobRow, room: FreeCapacity) -> bool:
        """Start a job that fits; else its message says what it waits for."""
        if obstacle := self._away(job) or _obstacle(room, job):
            if job.message != obstacle:
                await self._store.say(job.id, obstacle, State.WAITING)
            return False
        attempt = await self._store.begin_attempt(job.id)
        if attempt is None:
            return False
        room.take(request_of(job))
        self._spawn(job, attempt, self._hand_over(job, attempt))
        return True

    def _away(self, job: JobRow) -> str | None:
        """What a lost job waits for before it is started again, for two minutes: it would be lost with it once more."""
        away = " and ".join(self._outages.now()) if _lost_lately(job) else ""
        return f"The job waits for {away} before it is started again." if away else None

    async def _hand_over(self, job: JobRow, attempt: AttemptRow) -> None:
        """Give an attempt to Ray; may be repeated, because Ray takes an id once."""
        if attempt.number > 1:
            await anyio.to_thread.run_sync(fence.allow, job.id, attempt.number)
        try:
            for name in package_names(job.runtime_env):
                await self._bring_package(name)
            await self._head.submit(self._request(job, attempt))
        except (RefusedError, PackageError) as error:
            await self._store.refuse(job.id, attempt.number, str(error))
            await _if_kept(self._logs.note(job.id, str(error)))
            await _if_kept(self._logs.close(job.id))
            self._some_ended.set()
            return
        if attempt.number == 1:
            # Ray's own clients show a job's log, but nothing of ours in the answer to a submission.
            for notice in renamed_keys(job.job_metadata):
                _log.warning("Job %s: %s", job.id, notice)
                await _if_kept(self._logs.note(job.id, notice))
        await self._store.accepted(job.id, attempt.number)

    async def _bring_package(self, name: str) -> None:
        if await self._head.has_package(name):
            return
        if not await self._packages.exists(name):
            raise RefusedError(f"Package gcs://{name} of the job is not there; submit the job again.")
        size, content = await self._packages.size_and_stream(name)
        await self._head.put_package(name, size, content)

    def _request(self, job: JobRow, attempt: AttemptRow) -> dict[str, Any]:
        own = {"MLPLATFORM_JOB_ID": job.id, "MLPLATFORM_ATTEMPT": str(attempt.number), "RAY_LOG_TO_DRIVER": "0"}
        variables = {**(job.runtime_env.get("env_vars") or {}), **own}
        selector = {**(job.entrypoint_request.get("entrypoint_label_selector") or {}), **self._config.driver_labels}
        return {
            **{key: value for key, value in job.entrypoint_request.items() if value is not None},
            "entrypoint": job.entrypoint,
            "submission_id": attempt.ray_submission_id,
            "runtime_env": {**job.runtime_env, "env_vars": variables},
            "metadata": job.job_metadata,
            "entrypoint_label_selector": selector,
        }

    # --- The end ---

    async def _finish(self, job: JobRow, attempt: AttemptRow, ray: dict[str, Any] | None, node_dead: bool) -> None:
        seen = time.time()
        verdict = await self._verdict(attempt, ray, node_dead)
        if verdict is None:
            return
        lost = verdict.outcome is Outcome.LOST
        patience = _SETTLE_LOST_SECONDS if lost else _SETTLE_SECONDS
        await _if_kept(self._logs.settle(job.id, attempt.node, seen, timeout_s=patience))
        resumes = lost and await anyio.to_thread.run_sync(_has_checkpoint, job.id)
        if lost:
            # It may still wake up. Before its end is known: a job may be deleted at once, and its id taken anew.
            await anyio.to_thread.run_sync(fence.allow, job.id, attempt.number + 1)
        ended = await self._store.end_attempt(job.id, attempt.number, verdict, ray, resumes)
        if ended is None:
            return
        self._some_ended.set()
        if lost or not ended.transition.state.final:
            await _if_kept(self._logs.note(job.id, ended.transition.message))
        elif advice := advice_module.advice_in(ended.transition.message):
            await _if_kept(self._logs.note(job.id, advice))
        if ended.transition.state.final:
            await _if_kept(self._logs.close(job.id))
        if lost and ray is not None and ray["status"] != "FAILED":
            # Should it wake up again, it is told to end.
            await self._head.stop(attempt.ray_submission_id)

    async def _verdict(self, attempt: AttemptRow, ray: dict[str, Any] | None, node_dead: bool) -> Verdict | None:
        """The judgement with a closer look at what a failed driver stood on."""
        if ray is None or ray["status"] != "FAILED" or node_dead:
            return judge(Observation(ray, node_dead))
        agent = ray["driver_agent_http_address"]
        answers, _ = await asyncio.gather(
            self._head.node_answers(agent) if agent else asyncio.sleep(0, True), self._outages.probe()
        )
        # What was away before the attempt began did it no harm.
        age = (now() - attempt.created).total_seconds()
        return judge(Observation(ray, not answers, self._outages.recent(age)))

    # --- Behind ---

    async def _look_for_infeasible(self) -> None:
        await self._some_open.wait()
        await asyncio.sleep(_INFEASIBLE_SECONDS)
        await self._infeasible.look((await self.look()).nodes)

    async def _close_runs(self) -> None:
        """Give the runs of what has ended their end; while MLflow is away, they wait."""
        self._some_ended.clear()
        for sequence in await self._store.unclosed():
            # Looked up again, as one pass may be long: another job may have taken the id of a deleted one.
            if job := await self._store.by_sequence(sequence):
                try:
                    with self._errors.contained(job.id):
                        await self._close_runs_of(job)
                except UnreachableError:
                    await asyncio.sleep(_CLOSE_AGAIN_SECONDS)
                    raise
        await self._some_ended.wait()

    async def _close_runs_of(self, job: JobRow) -> None:
        over = job.ended is not None
        ended = [attempt for attempt in job.attempts if attempt.ended is not None]
        if self._tracking is not None:
            for attempt in ended if not over else []:
                if not attempt.runs_closed:
                    reason = f"Attempt {attempt.number}: {attempt.reason}"
                    await close_runs(self._tracking, job.id, "FAILED", reason, attempt=attempt.number)
            if over:
                await close_runs(self._tracking, job.id, _RUN_ENDS[State(job.state)], job.message)
        await self._store.runs_closed(job.sequence, [attempt.number for attempt in ended], over)

    async def _clean_ray(self) -> None:
        for ray_submission_id in await self._store.left_in_ray(_KEPT_IN_RAY):
            if await self._head.delete(ray_submission_id):
                await self._store.gone_from_ray(ray_submission_id)
        await asyncio.sleep(_CLEAN_SECONDS)

    async def _clean_packages(self) -> None:
        await asyncio.sleep(_CLEAN_PACKAGES_SECONDS)
        await self._packages.clean(await self._store.packages())


_RUN_ENDS: dict[State, Any] = {State.SUCCEEDED: "FINISHED", State.FAILED: "FAILED", State.STOPPED: "KILLED"}


async def _if_kept(work: Coroutine[Any, Any, object]) -> None:
    """Do something with a log; a job's life does not wait for the storage of its log."""
    try:
        await work
    except PlatformError as error:
        _log.warning("%s", error)


def _lost_lately(job: JobRow) -> bool:
    """Whether a job that waits was lost within the last two minutes."""
    return bool(job.losses) and (now() - job.not_before).total_seconds() <= LOOK_BACK_SECONDS


def _has_checkpoint(job_id: str) -> bool:
    return any("/checkpoint_" in file for file in objects.list_files(addresses.checkpoint_uri(job_id=job_id)))


def _has_news(attempt: AttemptRow, ray: dict[str, Any]) -> bool:
    running = ray["status"] == "RUNNING"
    known = (attempt.accepted, attempt.running, attempt.node_id, attempt.ray_job_id)
    return known != (True, running or attempt.running, ray["driver_node_id"], ray["job_id"]) or (
        running and attempt.node is None
    )


def _obstacle(room: FreeCapacity, job: JobRow) -> str | None:
    """What a job waits for, in a sentence; None where it can start."""
    try:
        wait = room.check(request_of(job))
    except CapacityError as error:
        return f"The job waits for a node that can run it. {error}"
    return str(wait) if wait else None
