"""Watch over what running jobs hold in Ray: one loop that measures for the ledger, the planner and the jobs' owners."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from mlplatform.gateway.control.containment import JobErrors, unless_log_unavailable
from mlplatform.gateway.control.gpus import GpuWatch, computing_for, held_by
from mlplatform.gateway.control.placements import amount_in
from mlplatform.gateway.control.queueing import Queue
from mlplatform.gateway.jobs.schema import AttemptRow, JobRow
from mlplatform.gateway.jobs.states import State
from mlplatform.gateway.jobs.store import JobStore, now
from mlplatform.gateway.jobs.submission import requested
from mlplatform.gateway.logs.store import JobLogs
from mlplatform.gateway.upstream.ray import ClusterSnapshot
from mlplatform.gateway.upstream.utilisation import Utilisation, UtilisationSource
from mlplatform.gateway.usage.ledger import Sample, Samples
from mlplatform.scheduling.preemption import is_overtime
from mlplatform.scheduling.queue import Placement, RunningJob, Team
from mlplatform.scheduling.resources import Node, format_amount
from mlplatform.scheduling.room import EPSILON
from mlplatform.scheduling.shares import Shares

PAUSE_SECONDS = 15.0
"""Ray lists which process holds what every 15 s."""

_ADVICE = (
    "They count like requested ones in `mlplatform usage` and in the queue, where other teams may take them back. "
    "Request them with --gpus, or --workers and --worker-gpus, and the job waits until they are free."
)


class Watcher:
    """Measurement of what running jobs hold.

    Args:
        queue: gets what attempts hold.
        use: source of what the nodes' agents measure.
        gpus: looks at each job's GPUs.
    """

    def __init__(
        self, store: JobStore, logs: JobLogs, queue: Queue, use: UtilisationSource, gpus: GpuWatch, errors: JobErrors
    ) -> None:
        self._store = store
        self._samples = Samples(store.engine)
        self._logs = logs
        self._queue = queue
        self._use = use
        self._gpus = gpus
        self._errors = errors
        self._told: set[str] = set()
        """Attempts by their ids at Ray; few hold GPUs that they have not requested."""

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
        # While a node does not answer, jobs hold what they held before.
        if use.complete:
            self._queue.held = {
                attempt.ray_submission_id: use.held[job.id] for job, attempt in active if job.id in use.held
            }
        waiting = [job for job in rows if job.open_attempt is None]
        view = await self._queue.view(waiting, active, snapshot.nodes)
        await self._measure(active, use, view.running, borrowers(view.teams, view.running, snapshot.nodes, view.now))
        for job, attempt in active:
            if State(job.state).runs and (held := held_by(job.id, use.gpus)):
                with self._errors.contained(job.id):
                    await self._gpus.look_at(job, attempt, held, self._queue.idle_s.get(job.team or "", 0))

    async def _measure(
        self,
        active: Sequence[tuple[JobRow, AttemptRow]],
        use: Utilisation,
        running: Sequence[RunningJob],
        borrowing: Mapping[str, bool],
    ) -> None:
        """Add measurements to the ledger, and tell jobs once that they hold more GPUs than they have requested."""
        placed = {job.id: job.placement for job in running}
        samples = {}
        for job, attempt in active:
            with self._errors.contained(job.id):
                gpus, cpus = (_excess(job, placed.get(job.id, {}), name) for name in ("GPU", "CPU"))
                computing = computing_for(job.id, held_by(job.id, use.gpus))
                samples[job.sequence, attempt.number] = Sample(gpus, cpus, borrowing.get(job.id), computing)
                # Nearly every plain script takes CPUs that it has not requested, and nobody waits for those.
                if gpus > EPSILON and attempt.ray_submission_id not in self._told:
                    self._told.add(attempt.ray_submission_id)
                    note = f"The job holds {format_amount('GPU', gpus)} beyond its request. {_ADVICE}"
                    await unless_log_unavailable(self._logs.note(job.id, note))
        await self._samples.add(now(), samples)


def _excess(job: JobRow, placed: Placement, resource: str) -> float:
    """Return the amount of a resource that a job holds beyond its request."""
    return max(0.0, amount_in(placed, resource) - requested(job).get(resource, 0))


def borrowers(
    teams: Mapping[str, Team], running: Sequence[RunningJob], nodes: Sequence[Node], present: float
) -> dict[str, bool]:
    """Return whether jobs hold idle resources of other teams, by job id; jobs that leave stay as they are.

    Jobs beyond their time limit have what nobody waits for.
    """
    shares = Shares(teams, nodes)
    staying = [job for job in running if job.notice is None]
    borrowed: set[str] = set()
    if not shares.alone:
        for team in teams:
            borrowed |= shares.borrowed(team, [job for job in staying if job.team == team])
    return {job.id: job.id in borrowed and not is_overtime(job, present) for job in staying}
