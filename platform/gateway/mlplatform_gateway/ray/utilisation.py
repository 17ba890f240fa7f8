"""Use of nodes and GPUs, and of both by each job, parsed from what the agents of Ray's dashboard measure.

Ray 2.60 measures every 5 s, lists which process holds which GPU every 15 s, and answers from a cache of 2 s.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from mlplatform.capacity.resources import Node
from mlplatform.errors import UnreachableError
from mlplatform_gateway.queue.planner.queue import Placement
from mlplatform_gateway.ray.head import ClusterSnapshot, RayHead
from mlplatform_gateway.ray.listings import job_ids, supervised_job
from mlplatform_gateway.ray.recent import Load, RecentLoads

_FRESH_SECONDS = 2.0
"""Ray's dashboard caches its own answers as long."""

_RAY_SECONDS = 3.0
"""Timeout of Ray's answers."""

_MIB = 1 << 20
"""Ray's unit of GPU memory."""

# Ray writes `GPU_group_0_<id>` of a placement group in camel case, and lists each amount twice: for bundle and group.
_NAMES = {resource: re.compile(rf"{resource}(Group\d*[0-9A-Fa-f]{{36}})?") for resource in ("GPU", "CPU")}


@dataclass(frozen=True)
class NodeUse:
    """A node's CPUs and memory.

    Attributes:
        name: host name.
        cpus: CPUs that the node declares to Ray.
        cpus_reserved: CPUs that jobs have reserved.
        memory_used: bytes in use in the node's container; None until its agent has reported.
        memory_total: the container's limit in bytes, or the host's memory.
    """

    name: str
    cpus: float
    cpus_reserved: float
    memory_used: int | None = None
    memory_total: int | None = None


@dataclass(frozen=True)
class GpuUse:
    """A GPU's load, and the jobs that hold it.

    Attributes:
        node: host name.
        index: position among the node's GPUs.
        name: model; empty if it is not measured, as that of a GPU which a node only declares.
        percent: share of the last second in which it computed; None if it is not measured.
        memory_used: bytes; None if they are not measured.
        memory_total: bytes; None if they are not measured.
        holders: amount of this GPU by job id; it may be a fraction.
        memory_of: bytes in use by job id; without the jobs for which nothing measures them.
    """

    node: str
    index: int
    name: str = ""
    percent: int | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    holders: Mapping[str, float] = field(default_factory=dict)
    memory_of: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class JobUse:
    """Measured use of a job's processes.

    Attributes:
        job_id: id of the job.
        cpus: CPUs in use, 1 being one core.
        memory: resident memory of its processes in bytes; a page that n processes share counts as 1/n.
    """

    job_id: str
    cpus: float
    memory: int


@dataclass(frozen=True)
class Utilisation:
    """Everything that the nodes' agents report.

    Attributes:
        nodes: nodes that run jobs.
        gpus: their GPUs.
        jobs: jobs that have processes.
        held: GPUs and CPUs that Ray has granted to the processes of each job, by job id.
        complete: whether it is known of all these nodes what their processes hold.
    """

    nodes: Sequence[NodeUse]
    gpus: Sequence[GpuUse]
    jobs: Sequence[JobUse]
    held: Mapping[str, Placement] = field(default_factory=dict)
    complete: bool = True


def loads_in(use: Utilisation) -> dict[str, Load]:
    """Return the load of each job; a GPU that it shares counts by the job's part of it."""
    processes = {job.job_id: job for job in use.jobs}
    found = {}
    for job_id in {*processes, *(job_id for gpu in use.gpus for job_id in gpu.holders)}:
        held = [gpu for gpu in use.gpus if gpu.holders.get(job_id)]
        busy = [(gpu.percent, gpu.holders[job_id]) for gpu in held if gpu.percent is not None]
        percent = sum(percent * part for percent, part in busy) / sum(part for _, part in busy) if busy else None
        memory = [gpu.memory_of[job_id] for gpu in held if job_id in gpu.memory_of]
        job = processes.get(job_id)
        of_processes = (job.cpus, job.memory) if job else (None, None)
        found[job_id] = Load(percent, sum(memory) if memory else None, *of_processes)
    return found


def utilisation_in(
    nodes: Sequence[Node], details: Iterable[Mapping[str, Any]], jobs: Iterable[Mapping[str, Any]]
) -> Utilisation:
    """Return the use of nodes, GPUs and jobs.

    Args:
        nodes: nodes of the cluster; those without CPUs, such as the stack's head, are left out.
        details: `/nodes/<id>` of each node that is alive, the part `detail`.
        jobs: the submitted jobs in the listing of the head's Jobs API; the id of an attempt stands for its job's.
    """
    measured = {detail["hostname"]: detail for detail in details if detail.get("hostname")}
    submitted = job_ids(jobs)
    used: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    shown = [node for node in nodes if node.alive and node.total.get("CPU")]
    for detail in measured.values():
        for worker in detail.get("workers") or []:
            if job_id := _owner(worker, detail.get("actors") or {}, submitted):
                used[job_id][0] += worker.get("cpuPercent", 0) / 100
                used[job_id][1] += (worker.get("memoryInfo") or {}).get("rss", 0)
    return Utilisation(
        [_node_use(node, measured.get(node.name, {})) for node in shown],
        [gpu for node in shown for gpu in _gpus(node, measured.get(node.name, {}), submitted)],
        [JobUse(job_id, round(cpus, 3), int(memory)) for job_id, (cpus, memory) in sorted(used.items())],
        _held(shown, measured, submitted),
        all(_is_complete(measured.get(node.name, {})) for node in shown),
    )


def _held(
    nodes: Sequence[Node], measured: Mapping[str, Mapping[str, Any]], submitted: Mapping[str, str]
) -> dict[str, Placement]:
    held: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(float)))
    for node in nodes:
        detail = measured.get(node.name, {})
        for worker in detail.get("workers") or []:
            if job_id := _owner(worker, detail.get("actors") or {}, submitted):
                for resource in _NAMES:
                    if slots := _slots(worker, resource):
                        held[job_id][node.name][resource] += sum(slots.values())
    return {job_id: {name: dict(amounts) for name, amounts in there.items()} for job_id, there in held.items()}


def _is_complete(detail: Mapping[str, Any]) -> bool:
    """Return whether a node has reported: its agent, and its raylet, which knows what each process holds.

    A dashboard that has restarted hears of the one after 5 s, and of the other after 15 s.
    """
    return bool(detail) and "storeStats" in (detail.get("raylet") or {})


def _node_use(node: Node, detail: Mapping[str, Any]) -> NodeUse:
    total, _, _, used = detail.get("mem") or (None,) * 4
    return NodeUse(node.name, node.total["CPU"], node.total["CPU"] - node.free.get("CPU", 0), used, total)


def _gpus(node: Node, detail: Mapping[str, Any], submitted: Mapping[str, str]) -> Iterator[GpuUse]:
    """Yield a node's GPUs: those that its agent measures, or else as many as it declares.

    Ray numbers the GPUs that it hands out by their position among the visible ones, which in a container are all.
    """
    holders: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    processes: dict[int, str] = {}
    for worker in detail.get("workers") or []:
        if job_id := _owner(worker, detail.get("actors") or {}, submitted):
            processes[worker.get("pid", 0)] = job_id
            for index, amount in _slots(worker, "GPU").items():
                holders[index][job_id] += amount
    measured = detail.get("gpus") or []
    for index in range(max(len(measured), math.ceil(node.total.get("GPU", 0)))):
        held = dict(holders.get(index, {}))
        if index >= len(measured):
            yield GpuUse(node.name, index, holders=held)
            continue
        gpu = measured[index]
        # Ray writes -1 if the driver does not tell, as for a part of a GPU (MIG).
        percent = gpu["utilizationGpu"] if (gpu.get("utilizationGpu") or 0) >= 0 else None
        used, total = gpu["memoryUsed"] * _MIB, gpu["memoryTotal"] * _MIB
        yield GpuUse(node.name, index, gpu["name"], percent, used, total, held, _memory(gpu, held, processes))


def _memory(gpu: Mapping[str, Any], held: Mapping[str, float], processes: Mapping[int, str]) -> Mapping[str, int]:
    """Return the memory in use of a GPU by job id.

    The only holder uses all of it. Of several, the driver counts the memory of each process, by an id that Ray knows
    unless the container has process ids of its own, and without the processes that a worker has started itself.
    """
    if len(held) == 1:
        return {next(iter(held)): gpu["memoryUsed"] * _MIB}
    used: dict[str, int] = defaultdict(int)
    for process in (gpu.get("processesPids") or {}).values():
        if job_id := processes.get(process["pid"]):
            used[job_id] += process["gpuMemoryUsage"] * _MIB
    return dict(used)


def _owner(worker: Mapping[str, Any], actors: Mapping[str, Any], submitted: Mapping[str, str]) -> str | None:
    """Return the job that a process works for; Ray's own job owns the actor that runs an entry point."""
    stats = (worker.get("coreWorkerStats") or [{}])[0]
    actor = actors.get(stats.get("actorId", ""), {})
    return supervised_job(actor.get("name") or "") or submitted.get(worker.get("jobId", ""))


def _slots(worker: Mapping[str, Any], resource: str) -> dict[int, float]:
    """Return the amounts of a resource that a process holds, by index: of the GPU, or 0 for CPUs."""
    amounts: dict[int, float] = {}
    stats = (worker.get("coreWorkerStats") or [{}])[0]
    for name, used in (stats.get("usedResources") or {}).items():
        if _NAMES[resource].fullmatch(name):
            for slot in used["resourceSlots"]:
                index = int(slot.get("slot", 0))
                amounts[index] = max(amounts.get(index, 0), slot["allocation"])
    return amounts


class UtilisationSource:
    """Source of what the nodes' agents measure, requested from the head once for everyone who looks.

    Ray 2.60 returns the use of processes for one node per request.

    Attributes:
        recent: load of the jobs over the last hour; the gateway measures every 15 s while a job is open.
    """

    def __init__(self, head: RayHead) -> None:
        self.recent = RecentLoads()
        self._head = head
        self._last = Utilisation((), (), ())
        self._read = float("-inf")
        self._lock = asyncio.Lock()

    async def of(self, cluster: ClusterSnapshot) -> Utilisation:
        """Return the use of a cluster's nodes, at most two seconds older than Ray's; partly empty without answers."""
        async with self._lock:
            if time.monotonic() - self._read > _FRESH_SECONDS:
                details = await asyncio.gather(*(self._details(node_id) for node_id in cluster.alive))
                self._last = utilisation_in(cluster.nodes, details, cluster.jobs.values())
                self._read = time.monotonic()
                self.recent.add(loads_in(self._last), time.time())
            return self._last

    async def _details(self, node_id: str) -> Mapping[str, Any]:
        with suppress(UnreachableError, TimeoutError):
            async with asyncio.timeout(_RAY_SECONDS):
                return await self._head.node_details(node_id)
        return {}
