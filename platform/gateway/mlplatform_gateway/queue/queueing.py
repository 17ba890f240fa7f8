"""The queue as the planner sees it: jobs and teams from the gateway's tables, nodes from Ray."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Engine

from mlplatform.capacity.resources import Node, Request
from mlplatform_gateway.audit.store import SHARED_TOKEN
from mlplatform_gateway.jobs.containment import JobErrors
from mlplatform_gateway.jobs.decisions import reservation_of
from mlplatform_gateway.jobs.schema import AttemptRow, JobRow
from mlplatform_gateway.jobs.store import now
from mlplatform_gateway.jobs.submission import request_of
from mlplatform_gateway.people.schema import TeamRow
from mlplatform_gateway.people.store import DEFAULT_TEAM, People
from mlplatform_gateway.queue import placements
from mlplatform_gateway.queue.placements import Footprint
from mlplatform_gateway.queue.planner.queue import (
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
from mlplatform_gateway.queue.planner.reasons import IDLE
from mlplatform_gateway.queue.returning import Returning, preempted
from mlplatform_gateway.usage.budgets import Budget, Budgets
from mlplatform_gateway.usage.gpus import is_reported_idle
from mlplatform_gateway.usage.history import UsageHistory

_YOUNG_SECONDS = 60.0
"""Time for which a started job is counted: an entry point imports for 20 s on two cores before it requests workers."""

_TEAMS_SECONDS, _USAGE_SECONDS = 5.0, 60.0
"""Ages at which teams and use are read again: an administrator waits for the one, and the other halves in two days."""


class Queue:
    """View of the queue; keeps the waiting jobs' objects between two views, which makes plans faster.

    Attributes:
        held: what the processes of attempts hold in Ray, as last measured, by Ray's submission id.
        budgets: those of teams, by name, at most a minute old.
        idle_s: seconds for which teams let the GPUs of their jobs do nothing, by name; 0 for any time.
    """

    def __init__(self, driver_labels: Mapping[str, str], engine: Engine, errors: JobErrors, rules: Rules) -> None:
        self._driver_labels = driver_labels
        self._rules = rules
        self._people = People(engine)
        self._history = UsageHistory(engine)
        self._budgets = Budgets(engine)
        self._errors = errors
        self._waiting: dict[int, WaitingJob] = {}
        self._stopping: dict[str, Notice] = {}
        self._teams: dict[str, Team] = {}
        self.idle_s: dict[str, int] = {}
        self.budgets: Mapping[str, Budget] = {}
        self._usage = Usage()
        self.held: Mapping[str, Placement] = {}
        self._returning = Returning(self._history)
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
        await self._refresh()
        await self._returning.read([*waiting, *(row for row, _ in active)])
        jobs = self._waiting_jobs(waiting, nodes)
        left, running = self._running_jobs(active, nodes)
        # Also teams that no administrator has added.
        named = {team: self._named(team) for team in (*(job.team for job in jobs), *(job.team for job in running))}
        return View(
            now=now().timestamp(),
            nodes=left,
            teams=with_cpus({**self._teams, **named}, nodes),
            waiting=jobs,
            running=running,
            usage=self._usage,
            rules=self._rules,
        )

    def _named(self, name: str) -> Team:
        return self._teams.get(name) or Team(name, 0, 0)

    @property
    def teams(self) -> int:
        """Number of the teams that administrators have added."""
        return len(self._teams)

    async def _refresh(self) -> None:
        """Read teams and use again if they are old."""
        if time.monotonic() - self._teams_read > _TEAMS_SECONDS:
            rows = await self._people.teams()
            self.budgets = await self._budgets.read(rows, now(), warn=True)
            self._teams = {row.name: _team(row, self.budgets.get(row.name)) for row in rows}
            self.idle_s = {row.name: row.idle_s for row in rows}
            self._teams_read = time.monotonic()
        if time.monotonic() - self._usage_read > _USAGE_SECONDS:
            self._usage = await self._history.read(now())
            self._usage_read = time.monotonic()

    def _waiting_jobs(self, rows: Sequence[JobRow], nodes: Sequence[Node]) -> list[WaitingJob]:
        known, self._waiting = self._waiting, {}
        for row in rows:
            with self._errors.contained(row.id):
                job, since, reserved = known.get(row.sequence), row.since.timestamp(), reservation_of(row)
                # What a returning job waits for depends on the nodes.
                if job is None or (job.since, job.reserved) != (since, reserved) or preempted(row):
                    job = WaitingJob(
                        **_common(row),
                        request=self._request(row, nodes),
                        since=since,
                        limit_s=row.limit_s,
                        at_most=row.at_most,
                        yields_until=self._yields_until(row),
                        reserved=reserved,
                    )
                self._waiting[row.sequence] = job
        return list(self._waiting.values())

    def _yields_until(self, row: JobRow) -> float:
        """Return until when nobody leaves for a job whose GPUs were idle: as long as they were allowed to be.

        Otherwise it would at once take back its team's share from the job that it has left for.
        """
        last = row.last_attempt
        if last is None or last.ended is None or not (last.leave_why or "").startswith(IDLE):
            return 0.0
        return last.ended.timestamp() + self.idle_s.get(row.team or "", 0)

    def _running_jobs(
        self, active: Sequence[tuple[JobRow, AttemptRow]], nodes: Sequence[Node]
    ) -> tuple[list[Node], list[RunningJob]]:
        jobs: list[tuple[JobRow, AttemptRow, Request, Footprint]] = []
        for row, attempt in sorted(active, key=lambda one: one[1].created):
            with self._errors.contained(row.id):
                request = self._request(row, nodes)
                held = self.held.get(attempt.ray_submission_id)
                young = (now() - attempt.created).total_seconds() < _YOUNG_SECONDS
                footprint = Footprint(request, attempt.running, young, held or {})
                jobs.append((row, attempt, request, footprint))
        left, places = placements.place(nodes, [footprint for *_, footprint in jobs])
        present = {attempt.ray_submission_id for _, attempt, *_ in jobs}
        self._stopping = {name: notice for name, notice in self._stopping.items() if name in present}
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
        idle_s, since = self.idle_s.get(row.team or ""), attempt.idle_since
        return bool(idle_s and since and (now() - since).total_seconds() >= idle_s and is_reported_idle(row))

    def _notice(self, row: JobRow, attempt: AttemptRow) -> Notice | None:
        """Return the notice of an attempt; a job that is being stopped leaves too, and need not be asked.

        Its deadline is counted from the first view, so a job that does not end is stuck, and others wait elsewhere.
        """
        if row.stop_requested:
            notice = Notice(now().timestamp() + (attempt.grace_s or self._rules.grace_s))
            return self._stopping.setdefault(attempt.ray_submission_id, notice)
        return Notice(attempt.leave_by.timestamp(), attempt.claimant or "") if attempt.leave_by else None

    def _request(self, row: JobRow, nodes: Sequence[Node]) -> Request:
        request = request_of(row)
        request = Request(request.entrypoint, request.workers, {**request.labels, **self._driver_labels})
        return self._returning.request(row, request, nodes, self._named(_team_of(row)))


def with_cpus(teams: Mapping[str, Team], nodes: Sequence[Node]) -> Mapping[str, Team]:
    """Return teams of which those with a share of GPUs alone also have the CPUs that go with these.

    They get a part of the CPUs that are in no other team's share. Without it, the CPUs that each job needs beside its
    GPUs would put all their jobs beyond their shares.
    """
    gpus, cpus = (sum(node.total.get(name, 0) for node in nodes if node.alive) for name in ("GPU", "CPU"))
    left = max(0.0, cpus - sum(team.cpus for team in teams.values()))
    return {
        name: team if team.cpus or not gpus else replace(team, cpus=left * min(1.0, team.gpus / gpus))
        for name, team in teams.items()
    }


def _team_of(row: JobRow) -> str:
    return row.team or DEFAULT_TEAM


def _common(row: JobRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "sequence": row.sequence,
        "team": _team_of(row),
        "person": row.person or SHARED_TOKEN,
        "job_class": JobClass(row.job_class),
        "group": row.group_name or "",
    }


def _team(row: TeamRow, budget: Budget | None) -> Team:
    """Return a team for the planner; once its budget is used up, it borrows everything, after all others."""
    caps = {whose: Caps(**row.caps.get(whose, {})) for whose in ("team", "person")}
    if budget and budget.part >= 1:
        return Team(row.name, 0, 0, 0, caps["team"], caps["person"], spent=str(budget))
    return Team(row.name, row.share_gpus, row.share_cpus, row.weight, caps["team"], caps["person"])
