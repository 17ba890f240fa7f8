"""The queue as the planner sees it: jobs and teams from the gateway's tables, nodes from Ray."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain
from typing import Any

from sqlalchemy import Engine

from mlplatform.gateway.audit.log import SHARED_TOKEN
from mlplatform.gateway.control import placements
from mlplatform.gateway.control.containment import JobErrors
from mlplatform.gateway.control.gpus import is_reported_idle
from mlplatform.gateway.control.placements import Footprint
from mlplatform.gateway.jobs.notices import claim_of, left_idle, notice_of
from mlplatform.gateway.jobs.schema import AttemptRow, JobRow
from mlplatform.gateway.jobs.states import Outcome
from mlplatform.gateway.jobs.store import now
from mlplatform.gateway.jobs.submission import request_of
from mlplatform.gateway.people.schema import TeamRow
from mlplatform.gateway.people.store import People
from mlplatform.gateway.usage.history import UsageHistory
from mlplatform.scheduling.free_capacity import YOUNG_SECONDS
from mlplatform.scheduling.queue import (
    Caps,
    JobClass,
    Notice,
    Placement,
    Rules,
    RunningJob,
    Team,
    Usage,
    View,
    WaitingJob,
)
from mlplatform.scheduling.resources import Node, Request, WorkerGroup
from mlplatform.scheduling.shares import EPSILON

DEFAULT_TEAM = "default"
"""Team of the jobs that the shared token submits. It has no share, and everything while there are no others."""

_TEAMS_SECONDS, _USAGE_SECONDS = 5.0, 60.0
"""Ages at which teams and use are read again: an administrator waits for the one, and the other halves in two days."""


class Queue:
    """View of the queue; keeps the waiting jobs' objects between two views, which makes plans faster.

    Attributes:
        held: what the processes of attempts hold in Ray, as last measured, by Ray's submission id.
    """

    def __init__(self, driver_labels: Mapping[str, str], engine: Engine, errors: JobErrors, rules: Rules) -> None:
        self._driver_labels = driver_labels
        self._rules = rules
        self._people = People(engine)
        self._history = UsageHistory(engine, nobody=SHARED_TOKEN)
        self._errors = errors
        self._waiting: dict[int, WaitingJob] = {}
        self._teams: dict[str, Team] = {}
        self._idle_s: dict[str, int] = {}
        self._usage = Usage()
        self.held: Mapping[str, Placement] = {}
        self._held_before: dict[tuple[int, int], tuple[float, float]] = {}
        self._teams_read = self._usage_read = float("-inf")

    async def view(
        self, waiting: Sequence[JobRow], active: Sequence[tuple[JobRow, AttemptRow]], nodes: Sequence[Node]
    ) -> View:
        """Return what the planner considers.

        Args:
            waiting: jobs that may start now.
            active: jobs with an attempt that holds resources, in the order of arrival.
            nodes: as Ray lists them.

        Raises:
            UnreachableError: the database is unavailable.
        """
        await self.refresh()
        await self._read_returning([*waiting, *(row for row, _ in active)])
        jobs = self._waiting_jobs(waiting)
        left, running = self._running_jobs(active, nodes)
        return View(
            now=now().timestamp(),
            nodes=left,
            teams=self._teams_with(jobs, running),
            waiting=jobs,
            running=running,
            claims=[claim for row in waiting if (claim := claim_of(row))],
            usage=self._usage,
            rules=self._rules,
        )

    async def running(
        self, active: Sequence[tuple[JobRow, AttemptRow]], nodes: Sequence[Node]
    ) -> tuple[Mapping[str, Team], list[RunningJob]]:
        """Return the teams, and the jobs that hold resources; arguments and errors as of `view`."""
        await self.refresh()
        await self._read_returning([row for row, _ in active])
        _, running = self._running_jobs(active, nodes)
        return self._teams_with(running), running

    def _teams_with(self, *jobs: Sequence[WaitingJob | RunningJob]) -> Mapping[str, Team]:
        """Return all teams, also those of jobs that no administrator has added."""
        names = {job.team for job in chain(*jobs)}
        return {**self._teams, **{name: self._teams.get(name) or Team(name, 0, 0) for name in names}}

    @property
    def teams(self) -> int:
        """Number of the teams that administrators have added."""
        return len(self._teams)

    async def refresh(self) -> None:
        """Read teams and use again if they are old.

        Raises:
            UnreachableError: the database is unavailable.
        """
        if time.monotonic() - self._teams_read > _TEAMS_SECONDS:
            rows = await self._people.teams()
            self._teams = {row.name: _team(row) for row in rows}
            self._idle_s = {row.name: row.idle_s for row in rows}
            self._teams_read = time.monotonic()
        if time.monotonic() - self._usage_read > _USAGE_SECONDS:
            self._usage = await self._history.read(now())
            self._usage_read = time.monotonic()

    async def _read_returning(self, rows: Sequence[JobRow]) -> None:
        """Read what jobs that were asked to leave had held, once for each of their attempts."""
        left = {(row.sequence, attempt.number) for row in rows if (attempt := _preempted(row))}
        self._held_before = {
            key: self._held_before.get(key) or await self._history.most_held(*key) for key in sorted(left)
        }

    def _waiting_jobs(self, rows: Sequence[JobRow]) -> list[WaitingJob]:
        known, self._waiting = self._waiting, {}
        for row in rows:
            with self._errors.contained(row.id):
                job, since = known.get(row.sequence), row.since.timestamp()
                if job is None or job.since != since:
                    job = WaitingJob(
                        **_common(row),
                        request=self._request(row),
                        since=since,
                        limit_s=row.limit_s,
                        at_most=row.at_most,
                        yields_until=self._yields_until(row),
                    )
                self._waiting[row.sequence] = job
        return list(self._waiting.values())

    def _yields_until(self, row: JobRow) -> float:
        """Return until when nobody leaves for a job whose GPUs were idle: as long as they were allowed to be.

        Otherwise it would at once take back its team's share from the job that it has left for.
        """
        ends = [attempt.ended.timestamp() for attempt in row.attempts[-1:] if attempt.ended and left_idle(attempt)]
        return ends[0] + self._idle_s.get(row.team or "", 0) if ends else 0.0

    def _running_jobs(
        self, active: Sequence[tuple[JobRow, AttemptRow]], nodes: Sequence[Node]
    ) -> tuple[list[Node], list[RunningJob]]:
        jobs: list[tuple[JobRow, AttemptRow, Request, Footprint]] = []
        for row, attempt in sorted(active, key=lambda one: one[1].created):
            with self._errors.contained(row.id):
                request = self._request(row)
                held = self.held.get(attempt.ray_submission_id)
                footprint = Footprint.of(request, attempt.running, _is_young(attempt.created), held)
                jobs.append((row, attempt, request, footprint))
        left, places = placements.place(nodes, [footprint for *_, footprint in jobs])
        running = [
            RunningJob(
                **_common(row),
                request=request,
                placement=place,
                started=attempt.created.timestamp(),
                ends_by=None if row.limit_s is None else attempt.created.timestamp() + row.limit_s,
                notice=self._notice(row, attempt),
                idle=self._is_idle(row, attempt),
                stays=attempt.grace_s is None,
            )
            for (row, attempt, request, _), place in zip(jobs, places, strict=True)
        ]
        return left, running

    def _is_idle(self, row: JobRow, attempt: AttemptRow) -> bool:
        """Return whether a job's GPUs have done nothing for as long as its team allows, as was reported."""
        idle_s, since = self._idle_s.get(row.team or ""), attempt.idle_since
        return bool(idle_s and since and (now() - since).total_seconds() >= idle_s and is_reported_idle(row))

    def _notice(self, row: JobRow, attempt: AttemptRow) -> Notice | None:
        """Return the notice of an attempt; a job that is being stopped leaves too, and need not be asked."""
        if row.stop_requested:
            return Notice(now().timestamp() + (attempt.grace_s or self._rules.grace_s))
        return notice_of(attempt)

    def _request(self, row: JobRow) -> Request:
        """Return what a job requests; after it was asked to leave, also what it held beyond that.

        Otherwise it would return at once, and compete in Ray with the job that it has left for.
        """
        request = request_of(row)
        request = Request(request.entrypoint, request.workers, {**request.labels, **self._driver_labels})
        attempt = _preempted(row)
        if attempt is None or request.workers is not None:
            return request
        return with_workers(request, self._held_before.get((row.sequence, attempt.number), (0.0, 0.0)))


def with_workers(request: Request, held: tuple[float, float]) -> Request:
    """Return a request with workers that hold what remains of an amount of GPUs and CPUs."""
    gpus, cpus = (max(0.0, most - asked) for most, asked in zip(held, request.sums, strict=True))
    if max(gpus, cpus) <= EPSILON:
        return request
    count = max(1, int(gpus) or int(cpus))
    return replace(request, workers=WorkerGroup(count, cpus / count, gpus / count))


def _preempted(row: JobRow) -> AttemptRow | None:
    """Return the last attempt of a job that has ended, if it was asked to leave."""
    ended = [attempt for attempt in row.attempts if attempt.ended is not None]
    return ended[-1] if ended and ended[-1].outcome == Outcome.PREEMPTED else None


def _common(row: JobRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "sequence": row.sequence,
        "team": row.team or DEFAULT_TEAM,
        "person": row.person or SHARED_TOKEN,
        "job_class": JobClass(row.job_class),
        "array": row.array_id or "",
    }


def _is_young(created: datetime) -> bool:
    return (now() - created).total_seconds() < YOUNG_SECONDS


def _team(row: TeamRow) -> Team:
    caps = {whose: Caps(**row.caps.get(whose, {})) for whose in ("team", "person")}
    return Team(row.name, row.share_gpus, row.share_cpus, row.weight, caps["team"], caps["person"])
