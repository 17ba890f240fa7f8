"""Charges of running jobs: what they hold in Ray, also beyond their requests, and on which terms."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from mlplatform.gateway.control.containment import JobErrors, unless_log_unavailable
from mlplatform.gateway.control.placements import amount_in
from mlplatform.gateway.control.queueing import Queue
from mlplatform.gateway.jobs.charges import ChargeStore
from mlplatform.gateway.jobs.schema import AttemptRow, JobRow
from mlplatform.gateway.jobs.store import JobStore, now
from mlplatform.gateway.jobs.submission import requested
from mlplatform.gateway.logs.store import JobLogs
from mlplatform.gateway.upstream.ray import ClusterSnapshot
from mlplatform.gateway.upstream.utilisation import UtilisationSource
from mlplatform.gateway.usage.ledger import Kind
from mlplatform.scheduling.queue import Placement, RunningJob, Team
from mlplatform.scheduling.reclaim import is_overtime
from mlplatform.scheduling.resources import Node, format_amount
from mlplatform.scheduling.shares import EPSILON, Shares

PAUSE_SECONDS = 15.0
"""Ray lists which process holds what every 15 s."""

CPU_SECONDS = 300.0
"""A row of the ledger per task would be thousands a day, which the decay of past use reads every minute."""

_ADVICE = (
    "They count like requested ones in `mlplatform usage` and in the queue, where other teams may take them back. "
    "Request them with --gpus, or --workers and --worker-gpus, and the job waits until they are free."
)


class Charging:
    """Measurement of what running jobs hold, for the ledger and the planner.

    Args:
        queue: gets what attempts hold.
        use: source of what the nodes' agents measure.
    """

    def __init__(self, store: JobStore, logs: JobLogs, queue: Queue, use: UtilisationSource, errors: JobErrors) -> None:
        self._store = store
        self._charges = ChargeStore(store.engine)
        self._logs = logs
        self._queue = queue
        self._use = use
        self._errors = errors
        self._known: dict[str, Charge] = {}
        self._told: set[str] = set()

    async def look(self, some_open: asyncio.Event, cluster: Callable[[], Awaitable[ClusterSnapshot]]) -> None:
        """Wait for open jobs and some seconds more, then measure once, to be repeated.

        Args:
            some_open: set while jobs are open.
            cluster: returns the nodes and jobs as Ray lists them.

        Raises:
            UnreachableError: Ray's head or the database is unavailable.
        """
        await some_open.wait()
        await asyncio.sleep(PAUSE_SECONDS)
        snapshot = await cluster()
        use = await self._use.of(snapshot)
        rows = await self._store.open_jobs()
        active = [(job, attempt) for job in rows if (attempt := job.open_attempt)]
        if use.complete:
            self._queue.held = {
                attempt.ray_submission_id: use.held[job.id] for job, attempt in active if job.id in use.held
            }
        names = {attempt.ray_submission_id for _, attempt in active}
        self._known = {name: charge for name, charge in self._known.items() if name in names}
        self._told &= names
        waiting = [job for job in rows if job.open_attempt is None]
        teams, running = await self._queue.running(waiting, active, snapshot.nodes)
        kinds = kinds_of(teams, running, snapshot.nodes, now().timestamp())
        placed = {job.id: job.placement for job in running} if use.complete else {}
        for job, attempt in active:
            with self._errors.contained(job.id):
                await self._charge(job, attempt, kinds.get(job.id), placed.get(job.id))

    async def _charge(self, job: JobRow, attempt: AttemptRow, kind: Kind | None, placed: Placement | None) -> None:
        """Charge an attempt for its request and for what it holds beyond that.

        Args:
            job: its job.
            attempt: the attempt.
            kind: terms on which it holds its resources; None keeps them.
            placed: what it requests or holds, as far as Ray counts it as used; None if that is not known now.
        """
        name = attempt.ray_submission_id
        before = self._known.get(name, Charge(None, None, -math.inf))
        amounts = before.amounts if placed is None else _amounts(requested(job), placed)
        if before.is_due(kind, amounts):
            await self._charges.change(job.id, attempt.number, kind, amounts)
            self._known[name] = Charge(kind, amounts, time.monotonic())
        beyond = (amounts or {}).get("GPU", 0) - requested(job).get("GPU", 0)
        # Nearly every plain script takes CPUs that it has not requested, and nobody waits for those.
        if beyond > EPSILON and name not in self._told:
            self._told.add(name)
            note = f"The job holds {format_amount('GPU', beyond)} beyond its request. {_ADVICE}"
            await unless_log_unavailable(self._logs.note(job.id, note))


@dataclass(frozen=True)
class Charge:
    """Last charge of an attempt.

    Attributes:
        kind: terms on which it holds its resources.
        amounts: by Ray's name of the resource; None if they were not known.
        at: time of the charge, by the monotonic clock.
    """

    kind: Kind | None
    amounts: Mapping[str, float] | None
    at: float

    def is_due(self, kind: Kind | None, amounts: Mapping[str, float] | None) -> bool:
        """Return whether a charge has to change now: one of CPUs alone may wait, as these change with each task."""
        if (self.kind, self.amounts) == (kind, amounts):
            return False
        only_cpus = self.kind == kind and self.amounts and amounts and self.amounts["GPU"] == amounts["GPU"]
        return not only_cpus or time.monotonic() - self.at >= CPU_SECONDS


def _amounts(wanted: Mapping[str, float], placed: Placement) -> Mapping[str, float]:
    return {name: round(max(wanted.get(name, 0), amount_in(placed, name)), 4) for name in ("GPU", "CPU")}


def kinds_of(
    teams: Mapping[str, Team], running: Sequence[RunningJob], nodes: Sequence[Node], present: float
) -> dict[str, Kind]:
    """Return the terms on which jobs hold their resources, by job id; those of jobs that leave stay as they are."""
    shares = Shares(teams, nodes)
    staying = [job for job in running if job.notice is None]
    borrowed: set[str] = set()
    if not shares.alone:
        for team in teams:
            borrowed |= shares.borrowed(team, [job for job in staying if job.team == team])
    return {
        job.id: Kind.OVERTIME if is_overtime(job, present) else Kind.BORROWED if job.id in borrowed else Kind.SHARE
        for job in staying
    }
