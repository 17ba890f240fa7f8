"""Charges of running jobs: what they hold in Ray, also beyond their requests, and on which terms."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

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
        self._known: dict[str, tuple[Kind | None, Mapping[str, float]]] = {}
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
        if not use.complete:
            return
        active = [(job, attempt) for job in await self._store.open_jobs() if (attempt := job.open_attempt)]
        self._queue.held = {
            attempt.ray_submission_id: use.held[job.id] for job, attempt in active if job.id in use.held
        }
        self._known = {name: charge for name, charge in self._known.items() if name in _names(active)}
        self._told &= _names(active)
        kinds = kinds_of(*await self._queue.running(active, snapshot.nodes), snapshot.nodes, now().timestamp())
        for job, attempt in active:
            with self._errors.contained(job.id):
                await self._charge(job, attempt, kinds.get(job.id), use.held.get(job.id, {}))

    async def _charge(self, job: JobRow, attempt: AttemptRow, kind: Kind | None, held: Placement) -> None:
        wanted = requested(job)
        beyond = {name: amount_in(held, name) - wanted.get(name, 0) for name in ("GPU", "CPU")}
        charge = kind, {name: wanted.get(name, 0) + max(0.0, more) for name, more in beyond.items()}
        if self._known.get(attempt.ray_submission_id) != charge:
            await self._charges.change(job.id, attempt.number, *charge)
            self._known[attempt.ray_submission_id] = charge
        # Nearly every plain script takes CPUs that it has not requested, and nobody waits for those.
        if beyond["GPU"] > EPSILON and attempt.ray_submission_id not in self._told:
            self._told.add(attempt.ray_submission_id)
            note = f"The job holds {format_amount('GPU', beyond['GPU'])} beyond its request. {_ADVICE}"
            await unless_log_unavailable(self._logs.note(job.id, note))


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


def _names(active: Sequence[tuple[JobRow, AttemptRow]]) -> set[str]:
    return {attempt.ray_submission_id for _, attempt in active}
