"""Watch over running jobs: what they hold in Ray, and which of their requests no node can ever satisfy."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

from mlplatform.capacity.resources import Node, Resources, WorkerGroup, format_amount
from mlplatform.errors import CapacityError
from mlplatform_gateway.jobs.containment import unless_log_unavailable
from mlplatform_gateway.jobs.schema import AttemptRow, JobRow
from mlplatform_gateway.jobs.services import Services
from mlplatform_gateway.jobs.states import State
from mlplatform_gateway.jobs.store import RUNNING_MESSAGE, now
from mlplatform_gateway.jobs.submission import requested
from mlplatform_gateway.queue.placements import amount_in
from mlplatform_gateway.queue.planner import feasibility
from mlplatform_gateway.queue.planner.preemption import is_overtime
from mlplatform_gateway.queue.planner.queue import Placement, RunningJob, Team
from mlplatform_gateway.queue.planner.room import EPSILON
from mlplatform_gateway.queue.planner.shares import Shares
from mlplatform_gateway.queue.queueing import Queue
from mlplatform_gateway.ray.utilisation import Utilisation, UtilisationSource
from mlplatform_gateway.usage.gpus import GpuWatch, computing_for, held_by
from mlplatform_gateway.usage.ledger import Sample, Samples

PAUSE_SECONDS = 15.0
"""Ray lists which process holds what every 15 s."""

_ADVICE = (
    "They count like requested ones in `mlplatform usage` and in the queue, where other teams may take them back. "
    "Request them with --gpus, or --workers and --worker-gpus, and the job waits until they are free."
)
_CHECK_SECONDS = 10.0
_WAITS = "The job runs, and waits for a node that can run its workers. "


class Watcher:
    """Measurement of what running jobs hold, in one loop for the ledger, the planner and the owners of the jobs.

    Args:
        queue: gets what attempts hold.
        use: source of what the nodes' agents measure.
        excess_s: time after a warning at which a job that still uses too much of a GPU's memory is ended.
    """

    def __init__(self, services: Services, queue: Queue, use: UtilisationSource, excess_s: float) -> None:
        self._services = services
        self._samples = Samples(services.store.engine)
        self._queue = queue
        self._use = use
        self._gpus = GpuWatch(services.store, services.logs, excess_s)
        self._told: set[str] = set()
        """Attempts by their ids at Ray; few hold GPUs that they have not requested."""

    async def look(self, some_open: asyncio.Event) -> None:
        """Wait for open jobs and some seconds more, then measure once, to be repeated.

        Raises:
            UnreachableError: Ray's head or the database is unavailable.
        """
        await some_open.wait()
        await asyncio.sleep(PAUSE_SECONDS)
        snapshot = await self._services.cluster.look()
        use = await self._use.of(snapshot)
        rows = await self._services.store.open_jobs()
        active = [(job, attempt) for job in rows if (attempt := job.open_attempt)]
        # While a node does not answer, jobs hold what they held before.
        if use.complete:
            self._queue.held = {
                attempt.ray_submission_id: use.held[job.id] for job, attempt in active if job.id in use.held
            }
        waiting = [job for job in rows if State(job.state).waits]
        view = await self._queue.view(waiting, active, snapshot.nodes)
        await self._measure(active, use, view.running, borrowers(view.teams, view.running, snapshot.nodes, view.now))
        for job, attempt in active:
            if State(job.state).runs and (held := held_by(job.id, use.gpus)):
                with self._services.errors.contained(job.id):
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
            with self._services.errors.contained(job.id):
                gpus, cpus = (_excess(job, placed.get(job.id, {}), name) for name in ("GPU", "CPU"))
                computing = computing_for(job.id, held_by(job.id, use.gpus))
                samples[job.sequence, attempt.number] = Sample(gpus, cpus, borrowing.get(job.id), computing)
                # Nearly every plain script takes CPUs that it has not requested, and nobody waits for those.
                if gpus > EPSILON and attempt.ray_submission_id not in self._told:
                    self._told.add(attempt.ray_submission_id)
                    note = f"The job holds {format_amount('GPU', gpus)} beyond its request. {_ADVICE}"
                    await unless_log_unavailable(self._services.logs.note(job.id, note))
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


class InfeasibleRequests:
    """Reporter of infeasible requests, in the message and the log of their job."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._found: dict[str, str] = {}

    async def look(self, some_open: asyncio.Event) -> None:
        """Wait for open jobs and ten seconds more, then check once, to be repeated.

        Requests are reported that two checks in a row find, because joining nodes are not listed all at once.

        Raises:
            UnreachableError: Ray's head or the database is unavailable.
        """
        await some_open.wait()
        await asyncio.sleep(_CHECK_SECONDS)
        nodes = (await self._services.cluster.look()).nodes
        running = [job for job in await self._services.store.open_jobs() if job.state == State.RUNNING]
        before, self._found = self._found, await self._find(running, nodes) if running else {}
        for job in running:
            reason = self._found.get(job.id)
            if reason == before.get(job.id):
                with self._services.errors.contained(job.id):
                    await self._report(job, reason)

    async def _find(self, running: Sequence[JobRow], nodes: Sequence[Node]) -> dict[str, str]:
        """Return the reasons why requests are infeasible, by job id."""
        if not any(infeasible_reason(nodes, bundles) for bundles in await self._services.head.pending_shapes()):
            return {}
        ids = {attempt.ray_job_id: job.id for job in running if (attempt := job.open_attempt)}
        requests = [
            (ids[ray_job_id], bundles)
            for ray_job_id, bundles in await self._services.head.pending_requests()
            if ray_job_id in ids
        ]
        return {job_id: reason for job_id, bundles in requests if (reason := infeasible_reason(nodes, bundles))}

    async def _report(self, job: JobRow, reason: str | None) -> None:
        if not reason:
            if job.message.startswith(_WAITS):
                await self._services.store.set_message(job.id, RUNNING_MESSAGE, State.RUNNING)
        elif job.message != (message := _WAITS + reason):
            await self._services.logs.note(job.id, f"{message} To end the job: mlplatform stop {job.id}")
            await self._services.store.set_message(job.id, message, State.RUNNING)


def infeasible_reason(nodes: Sequence[Node], bundles: Sequence[Mapping[str, float]]) -> str | None:
    """Return why nodes can never hold all bundles at once, each bundle on one node; None if they can."""
    for kind, count in Counter(frozenset(bundle.items()) for bundle in bundles).items():
        custom = dict(kind)
        group = WorkerGroup(count, custom.pop("CPU", 0), custom.pop("GPU", 0), custom)
        try:
            feasibility.check(nodes, Resources(), group)
        except CapacityError as error:
            return str(error)
    return None
