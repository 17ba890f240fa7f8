"""Start of attempts: execution of the planner's starts, and submission of an attempt to Ray."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import anyio.to_thread

from mlplatform.contract import MAX_COMMAND
from mlplatform.settings.proxies import BYPASS, bypass
from mlplatform.storage import fence
from mlplatform_gateway.errors import RefusedError
from mlplatform_gateway.jobs.attempt_tokens import AttemptTokens
from mlplatform_gateway.jobs.containment import unless_log_unavailable
from mlplatform_gateway.jobs.decisions import Decisions
from mlplatform_gateway.jobs.schema import AttemptRow, JobRow
from mlplatform_gateway.jobs.services import Services
from mlplatform_gateway.jobs.states import State
from mlplatform_gateway.jobs.store import now
from mlplatform_gateway.monitoring.outages import LOOK_BACK_SECONDS
from mlplatform_gateway.packages.store import package_names
from mlplatform_gateway.people.store import DEFAULT_TEAM
from mlplatform_gateway.queue.leaving import Departures
from mlplatform_gateway.queue.leaving import variables as variables_of_leaving
from mlplatform_gateway.queue.planner.plan import plan
from mlplatform_gateway.queue.planner.queue import Action, Explain, Rules, Start, View
from mlplatform_gateway.queue.queueing import Queue
from mlplatform_gateway.ray.head import ClusterSnapshot
from mlplatform_gateway.usage.budgets import LOW

_PLACE_SECONDS = 120.0
"""Time for which a start holds its place; one that takes longer waits or hangs, and must not block the others."""

_HOLD_SECONDS = 2.0
"""Longest time for which starts wait, because each takes a second of CPU time or more."""


@dataclass(frozen=True)
class Limits:
    """Numbers and durations of starts.

    Attributes:
        starts: jobs that may start at the same time; each start takes seconds of CPU time.
        start_s: time in which Ray must start an attempt.
        rules: durations of the queue.
    """

    starts: int
    start_s: float
    rules: Rules


class Starter:
    """Start of attempts of waiting jobs.

    Attributes:
        view: what the planner was last given; None if no job waits for resources.
        queue: source of the view.
        departures: jobs that were asked to leave.
    """

    def __init__(self, services: Services, tokens: AttemptTokens, limits: Limits) -> None:
        self._starts = limits.starts
        self._services = services
        self._rules = limits.rules
        self.queue = Queue(services.driver_labels, services.store.engine, services.errors, limits.rules)
        self._tokens = tokens
        self._decisions = Decisions(services.store.engine)
        self.departures = Departures(services)
        self.view: View | None = None

    async def begin(
        self,
        waiting: Sequence[JobRow],
        active: Sequence[tuple[JobRow, AttemptRow]],
        ending: Container[str],
        cluster: ClusterSnapshot,
    ) -> AsyncIterator[tuple[JobRow, AttemptRow]]:
        """Yield an attempt, stored but not yet known to Ray, of each waiting job that can start now.

        The control loop passes each to `hand_over`. The planner decides on the order. A job that keeps waiting gets the
        reason as its message.

        Args:
            waiting: jobs without an attempt.
            active: jobs with an open attempt.
            ending: ids of active jobs whose attempt has ended; only their log is incomplete.
            cluster: jobs and nodes as Ray lists them.

        Raises:
            UnreachableError: the database is unavailable.
        """
        starting = [
            job
            for job, attempt in active
            if not State(job.state).runs and job.id not in ending and _age(attempt) < _PLACE_SECONDS
        ]
        places, teams = self._starts - len(starting), {job.team for job in starting}
        rows = {job.id: job for job in await self._due(waiting)}
        if not rows:
            self.view = None
            return
        holding = [(job, attempt) for job, attempt in active if job.id not in ending]
        self.view = view = await self.queue.view(list(rows.values()), holding, cluster.nodes)
        actions = plan(view)
        done: list[Action] = []
        for action in actions:
            if not isinstance(action, Start):
                done.append(action)
                continue
            job = rows[action.job]
            # A team within its share can always start one job, whatever takes the places. The others start later, and
            # what the plan does after them leaves them their room.
            if places > 0 or (action.within_share and job.team not in teams):
                attempt = await self._attempt(action, job)
                if attempt is None:
                    break  # the job no longer waits, so its room is free for what the next plan decides
                places -= 1
                teams.add(job.team)
                yield job, attempt
        await self.departures.execute(done)
        await self._explain(view, actions, rows)

    async def _attempt(self, start: Start, job: JobRow) -> AttemptRow | None:
        """Store the attempt of a start; None if that fails, or the job no longer waits."""
        # Where no team lends, only a job that has reached its limit is asked to leave.
        may_be_asked = self.queue.teams or job.limit_s is not None
        grace_s = self._rules.grace_s if may_be_asked else None
        with self._services.errors.contained(job.id):
            attempt = await self._services.store.begin_attempt(job.id, not start.within_share, grace_s)
            budget = self.queue.budgets.get(job.team or DEFAULT_TEAM)
            if attempt and budget and budget.part >= LOW:
                await unless_log_unavailable(self._services.logs.note(job.id, str(budget)))
            return attempt
        return None

    async def _due(self, waiting: Sequence[JobRow]) -> list[JobRow]:
        """Return the jobs that may start now; the others get the reason as their message, except for the time."""
        due = [job for job in waiting if job.not_before <= now()]
        if any(map(_lost_lately, due)):
            await self._services.outages.probe()
        ready = []
        for job in due:
            # Started while a service is unavailable, a lost job would be lost again.
            unavailable = " and ".join(self._services.outages.now()) if _lost_lately(job) else ""
            message = f"The job waits for {unavailable} before it is started again."
            if not unavailable:
                ready.append(job)
            elif job.message != message:
                await self._services.store.set_message(job.id, message, State(job.state))
        return ready

    async def _explain(self, view: View, actions: Sequence[Action], rows: Mapping[str, JobRow]) -> None:
        """Change the messages of the jobs that keep waiting; equal jobs wait for the same reasons."""
        jobs = {job.id: job for job in view.waiting}
        says = {action.job: action for action in actions if isinstance(action, Explain)}
        lines = {jobs[say.job].line: say for say in says.values()}
        started = {action.job for action in actions if isinstance(action, Start)}
        texts = {say.job: " ".join(reason.text for reason in say.reasons) for say in says.values()}
        changed: dict[str, list[int]] = {}
        for job in view.waiting:
            say = says.get(job.id) or lines.get(job.line)
            if say is not None and job.id not in started and rows[job.id].message != texts[say.job]:
                changed.setdefault(texts[say.job], []).append(job.sequence)
        if changed:
            await self._decisions.explain(changed)

    async def hand_over(self, job: JobRow, attempt: AttemptRow) -> None:
        """Submit an attempt to Ray; may be repeated, because Ray accepts a submission id once.

        Raises:
            RefusedError, PackageError: Ray rejects the job, or its package is missing.
            UnreachableError: Ray's head, the storage or the database is unavailable.
            AccessError, StorageError: the storage rejects the gateway's accounts.
        """
        if attempt.number > 1:
            await anyio.to_thread.run_sync(fence.allow, job.id, attempt.number)
        for name in package_names(job.runtime_env):
            await self._upload_package(name)
        account = await self._tokens.variables(job, attempt)
        await self._services.head.submit(self._request(job, attempt, account))
        await self._services.store.accepted(job.id, attempt.number)

    async def _upload_package(self, name: str) -> None:
        if await self._services.head.has_package(name):
            return
        if not await self._services.packages.exists(name):
            raise RefusedError(f"Package gcs://{name} of the job does not exist; submit the job again.")
        size, content = await self._services.packages.size_and_stream(name)
        await self._services.head.put_package(name, size, content)

    def _request(self, job: JobRow, attempt: AttemptRow, account: Mapping[str, str]) -> dict[str, Any]:
        """Body of the submission to Ray's Jobs API; variables that the job sets itself replace its account."""
        own = {"MLPLATFORM_JOB_ID": job.id, "MLPLATFORM_ATTEMPT": str(attempt.number), "RAY_LOG_TO_DRIVER": "0"}
        own |= variables_of_leaving(attempt)
        variables = _with_bypass({**_DEFAULTS, **account, **(job.runtime_env.get("env_vars") or {}), **own})
        selector = {**(job.entrypoint_request.get("entrypoint_label_selector") or {}), **self._services.driver_labels}
        return {
            **{key: value for key, value in job.entrypoint_request.items() if value is not None},
            "entrypoint": job.entrypoint,
            "submission_id": attempt.ray_submission_id,
            "runtime_env": {**job.runtime_env, "env_vars": variables},
            # Of clients that record no command, such as `ray job submit` on a laptop.
            "metadata": {"entrypoint": job.entrypoint[:MAX_COMMAND], **job.job_metadata},
            "entrypoint_label_selector": selector,
        }


_DEFAULTS = {"RAY_OVERRIDE_JOB_RUNTIME_ENV": "1"}
"""Let a script that calls `ray.init(runtime_env=...)` run as it does in a terminal: Ray would refuse a `working_dir`,
because each job has one, and a variable that both set, even to the same value."""


def _age(attempt: AttemptRow) -> float:
    return (now() - attempt.created).total_seconds()


def _with_bypass(variables: dict[str, str]) -> dict[str, str]:
    """Return a job's variables; its own list of hosts without a proxy, if it has one, also names the platform's."""
    given = [variables.get(name) for name in BYPASS]
    return variables | bypass(*given) if any(given) else variables


def _lost_lately(job: JobRow) -> bool:
    """Return whether a waiting job was lost, and its restart has been due for two minutes at most."""
    return bool(job.losses) and (now() - job.not_before).total_seconds() <= LOOK_BACK_SECONDS


class Bursts:
    """Submissions that are being accepted at this moment."""

    def __init__(self) -> None:
        self._submissions = 0
        self._began = float("-inf")

    @contextmanager
    def submission(self) -> Iterator[None]:
        """Note that a job is being accepted while the block runs."""
        self._submissions += 1
        try:
            yield
        finally:
            self._submissions -= 1

    def may_begin(self) -> bool:
        """Return whether waiting jobs may start now; they may at least every two seconds."""
        if self._submissions and time.monotonic() - self._began < _HOLD_SECONDS:
            return False
        self._began = time.monotonic()
        return True
