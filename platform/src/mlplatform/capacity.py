"""Whether a job can ever run on the nodes that there are, and what it has to wait for.

Pure functions over what Ray's dashboard says of its nodes; `jobs` asks for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from mlplatform.errors import CapacityError

SEEN_LATELY_SECONDS = 600
"""A node that was lost less long ago counts: it may only be restarting."""

ATTEMPT_ID = re.compile(r"--\d+-[0-9a-f]{6}$")
"""How the ids end under which Ray knows the attempts of a job of the gateway; people's ids must not."""

_EPSILON = 1e-9
_LEAST = 0.0001
"""Ray refuses less of a resource (`ray._common.ray_option_utils`), and how often less fits overflows."""

_IN_BYTES = ("memory", "object_store_memory")

_USED = re.compile(r"^([\d.]+)/[\d.]+ (\S+)", re.MULTILINE)
_IN_GROUP = re.compile(r"_group(_\d+)?_[0-9a-f]{36}$")


@dataclass(frozen=True)
class Resources:
    """What the entry point itself reserves; the workers of a training reserve their own."""

    cpus: float = 0
    gpus: float = 0
    custom: Mapping[str, float] = field(default_factory=dict)

    def amounts(self) -> dict[str, float]:
        """Ray's names of the resources that are asked for, and how much of each."""
        return {name: value for name, value in {"CPU": self.cpus, "GPU": self.gpus, **self.custom}.items() if value}


@dataclass(frozen=True)
class WorkerGroup:
    """Equal workers that a training asks for, as `ray.train.ScalingConfig` does."""

    count: int
    cpus: float = 1
    gpus: float = 0
    custom: Mapping[str, float] = field(default_factory=dict)

    def amounts(self) -> dict[str, float]:
        """What one worker reserves."""
        return Resources(self.cpus, self.gpus, self.custom).amounts()


@dataclass(frozen=True)
class Node:
    """A node as it is, or as it was when it was last seen."""

    name: str
    alive: bool
    total: Mapping[str, float]
    free: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)

    def room(self, now: bool) -> Mapping[str, float]:
        """What it has for jobs: all of it, or what nobody uses now."""
        return self.total if not now else self.free if self.alive else {}

    def has(self, labels: Mapping[str, str]) -> bool:
        """Whether it satisfies a label selector of Ray's: values may be `v`, `!v`, `in(v, w)` and `!in(v, w)`."""
        return all(_selects(wanted, self.labels.get(key)) for key, wanted in labels.items())


@dataclass(frozen=True)
class Wait:
    """The job can run, but not now; `str()` says what it waits for."""

    missing: str
    users: tuple[str, ...] = ()
    """Jobs that run now."""

    away: tuple[str, ...] = ()
    """Nodes that were lost lately and may come back."""

    def __str__(self) -> str:
        parts = [f"The job waits for {self.missing}"]
        if self.users:
            parts.append(f"in use by {', '.join(self.users)}")
        if self.away:
            parts.append(f"{', '.join(self.away)} {'is' if len(self.away) == 1 else 'are'} away")
        return "; ".join(parts) + "."


def check(
    nodes: Sequence[Node],
    entry: Resources,
    workers: WorkerGroup | None = None,
    labels: Mapping[str, str] = MappingProxyType({}),
) -> Wait | None:
    """Refuse what the nodes can never run, and say what is missing now.

    Args:
        nodes: alive, or seen lately.
        entry: what the entry point reserves.
        workers: the group that the job's code asks for.
        labels: selector of the nodes that may run the entry point; empty means any.

    Returns:
        What has to become free first; None when there is room now.

    Raises:
        CapacityError: no node, or not all of them together, can ever give what is asked for.
    """
    hosts = [node for node in nodes if node.has(labels)]
    selector = ", ".join(f"{key}={value}" for key, value in labels.items())
    _check_amounts("The entry point", entry.amounts())
    _check_fits("The entry point", entry.amounts(), hosts, f" with label {selector}" if selector else "")
    if workers:
        _check_amounts("One worker", workers.amounts())
        _check_fits("One worker", workers.amounts(), nodes, "")
        most = _most_workers(nodes, hosts, entry.amounts(), workers.amounts())
        if most < workers.count:
            raise CapacityError(_too_many(nodes, entry.amounts(), workers, int(most)))
    return _wait(nodes, hosts, entry.amounts(), workers)


def nodes_in(shapes: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], now: float) -> list[Node]:
    """Read the nodes that count from two of the dashboard's listings.

    Args:
        shapes: `/api/v0/nodes?detail=1`, which keeps the shape of a node that was lost.
        summary: `/nodes?view=summary`, which knows host names and, a few seconds late, what is in use.
        now: seconds since 1970.

    Returns:
        Nodes alive, and those lost within the last ten minutes that no later one has replaced.
    """
    hosts = {node["raylet"]["nodeId"]: node.get("hostname") for node in summary["summary"] if node.get("raylet")}
    used = summary.get("nodeLogicalResources") or {}
    counted = []
    for shape in shapes:
        name = hosts.get(shape["node_id"]) or shape["node_name"]
        alive = shape["state"] == "ALIVE"
        lost_lately = now - shape["end_time_ms"] / 1000 < SEEN_LATELY_SECONDS
        if alive or (lost_lately and not _replaced(shape, name, shapes, hosts)):
            total = {key: float(value) for key, value in shape["resources_total"].items()}
            free = _without(total, _used(used.get(shape["node_id"], "")))
            counted.append(Node(name, alive, total, free, shape["labels"] or {}))
    return sorted(counted, key=lambda node: node.name)


def users_of(
    asked: Iterable[str], actors: Iterable[Mapping[str, Any]], jobs: Iterable[Mapping[str, Any]]
) -> tuple[str, ...]:
    """Ids of the jobs whose living actors hold some of the resources.

    Args:
        asked: names of resources.
        actors: `/api/v0/actors?detail=1`.
        jobs: the listing of the Jobs API.
    """
    submitted = {job["job_id"]: job["submission_id"] for job in jobs if job["submission_id"]}
    found = set()
    for actor in actors:
        held = {_IN_GROUP.sub("", name) for name, value in (actor["required_resources"] or {}).items() if value}
        # The actor that runs an entry point belongs to Ray's own job, and carries the job's id in its name.
        _, _, entry = (actor["name"] or "").rpartition("_ray_internal_job_actor_")
        owner = ATTEMPT_ID.sub("", entry) if actor["class_name"] == "JobSupervisor" else submitted.get(actor["job_id"])
        if owner and held.intersection(asked):
            found.add(owner)
    return tuple(sorted(found))


def describe(amounts: Mapping[str, float]) -> str:
    """Amounts as people say them: `8 CPUs and 1 GPU`."""
    words = [_amount(name, value) for name, value in amounts.items()]
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _replaced(
    lost: Mapping[str, Any], name: str, shapes: Iterable[Mapping[str, Any]], hosts: Mapping[str, str | None]
) -> bool:
    """Whether a node of the same host has started after it."""
    return any(
        shape["start_time_ms"] > lost["start_time_ms"]
        and (shape["node_ip"] == lost["node_ip"] or (hosts.get(shape["node_id"]) or shape["node_name"]) == name)
        for shape in shapes
    )


def _used(lines: str) -> dict[str, float]:
    """Read `1.0/4.0 CPU (1.0 used of 1.0 reserved in placement groups)`; memory, in other units, is left out."""
    return {name: float(value) for value, name in _USED.findall(lines)}


def _selects(wanted: str, value: str | None) -> bool:
    negated, wanted = wanted.startswith("!"), wanted.removeprefix("!")
    listed = wanted.removeprefix("in(").removesuffix(")") if wanted.startswith("in(") else wanted
    choices = {choice.strip() for choice in listed.split(",")} if listed is not wanted else {wanted}
    return (value in choices) != negated


def _check_amounts(who: str, amounts: Mapping[str, float]) -> None:
    """Ray gives GPUs in fractions below 1, and whole ones above (`ray._private.ray_option_utils`)."""
    for name, value in amounts.items():
        if value < 0:
            raise CapacityError(f"{who} asks for {_amount(name, value)}; ask for 0 or more.")
        if 0 < value < _LEAST:
            raise CapacityError(
                f"{who} asks for {_amount(name, value)}, and Ray counts in steps of {_LEAST}; ask for more."
            )
    gpus = amounts.get("GPU", 0)
    if gpus > 1 and gpus != int(gpus):
        raise CapacityError(
            f"{who} asks for {_amount('GPU', gpus)}, and above 1 Ray gives whole ones only; "
            f"ask for {math.floor(gpus)} or {math.ceil(gpus)}."
        )


def _check_fits(who: str, asked: Mapping[str, float], nodes: Sequence[Node], which: str) -> None:
    """One node has to give all of it."""
    if any(_times(node.total, asked) >= 1 for node in nodes):
        return
    start = f"{who} asks for {describe(asked) or 'no resources'}"
    if not nodes:
        raise CapacityError(f"{start}; Ray knows no node{which}, start a worker.")
    most = {name: max(node.total.get(name, 0) for node in nodes) for name in asked}
    short = {name: value for name, value in most.items() if value + _EPSILON < asked[name]}
    if not short:
        raise CapacityError(
            f"{start} on one node; no node{which} has all of that at once ({_shapes(nodes, asked)}); "
            "ask for what one of these has."
        )
    has = " and ".join(
        f"more than {_amount(name, value)}" if value else f"a {_unit(name, 1)}" for name, value in short.items()
    )
    limit = " and ".join(
        f"at most {_amount(name, value)}" if value else f"no {_unit(name, 1)}" for name, value in short.items()
    )
    best = [node for node in nodes if all(node.total.get(name, 0) == most[name] for name in short)]
    raise CapacityError(f"{start}; no node{which} has {has} ({_shapes(best or nodes, asked)}); ask for {limit}.")


def _too_many(nodes: Sequence[Node], entry: Mapping[str, float], workers: WorkerGroup, most: int) -> str:
    beside = f" beside {describe(entry)} for the entry point" if entry else ""
    useful = [node for node in nodes if _times(node.total, workers.amounts()) >= 1]
    advice = f"ask for at most {most}" if most > 0 else "ask for less for each or for the entry point"
    return (
        f"The job asks for {workers.count} workers with {describe(workers.amounts())} each{beside}; "
        f"all nodes together hold {most or 'none'} ({_shapes(useful, workers.amounts())}); {advice}."
    )


def _most_workers(
    nodes: Sequence[Node],
    hosts: Sequence[Node],
    entry: Mapping[str, float],
    one: Mapping[str, float],
    now: bool = False,
) -> float:
    """How many equal workers fit beside the entry point, wherever it goes; -1 when the entry point itself does not fit.

    A worker never spans nodes, so each node holds its own number of them, and only the node that takes the entry
    point holds fewer: the best over all such nodes is exact.
    """
    places = [host.room(now) for host in hosts if _times(host.room(now), entry) >= 1]
    if not places:
        return -1
    if not one:
        return math.inf
    lost = min(_times(room, one) - _times(_without(room, entry), one) for room in places)
    return sum(_times(node.room(now), one) for node in nodes) - lost


def _wait(
    nodes: Sequence[Node], hosts: Sequence[Node], entry: Mapping[str, float], workers: WorkerGroup | None
) -> Wait | None:
    one = workers.amounts() if workers else {}
    count = workers.count if workers else 0
    room = _most_workers(nodes, hosts, entry, one, now=True)
    if room >= count:
        return None
    away = tuple(node.name for node in nodes if not node.alive)
    if room < 0:
        return Wait(_deficit(entry, hosts), away=away)
    return Wait(f"room for {count - int(room)} of its {count} workers with {describe(one)} each", away=away)


def _deficit(asked: Mapping[str, float], hosts: Sequence[Node]) -> str:
    """What is missing on the node that lacks least of it."""
    able = [host for host in hosts if _times(host.total, asked) >= 1]
    lacking = [
        {
            name: value - host.room(True).get(name, 0)
            for name, value in asked.items()
            if value > host.room(True).get(name, 0)
        }
        for host in able
    ]
    return describe(min(lacking, key=lambda lack: (len(lack), sum(lack.values()))))


def _times(room: Mapping[str, float], asked: Mapping[str, float]) -> float:
    """How often `asked` fits into `room`."""
    return min((_pieces(name, room.get(name, 0), value) for name, value in asked.items()), default=math.inf)


def _pieces(name: str, there: float, each: float) -> int:
    """How many pieces of a resource there are; a part of a GPU lies on one of them, so 0.6 fits twice into 2 GPUs."""
    if name != "GPU" or each >= 1:
        return math.floor(there / each + _EPSILON)
    whole = math.floor(there + _EPSILON)
    return whole * math.floor(1 / each + _EPSILON) + math.floor((there - whole) / each + _EPSILON)


def _without(room: Mapping[str, float], asked: Mapping[str, float]) -> dict[str, float]:
    return {name: value - asked.get(name, 0) for name, value in room.items()}


def _shapes(nodes: Sequence[Node], asked: Mapping[str, float]) -> str:
    """Nodes by what they have, `a, b: 8 CPUs and 1 GPU`: at most three kinds, the largest first."""
    kinds: dict[str, list[str]] = {}
    for node in sorted(nodes, key=lambda node: [-node.total.get(name, 0) for name in (*asked, "GPU", "CPU")]):
        shown = {name: node.total.get(name, 0) for name in dict.fromkeys(("CPU", "GPU", *asked))}
        kinds.setdefault(describe(shown), []).append(node.name)
    return "; ".join(f"{', '.join(names)}: {shape}" for shape, names in list(kinds.items())[:3])


def _amount(name: str, value: float) -> str:
    if name in _IN_BYTES:
        unit, size = ("GiB", 1 << 30) if value >= 1 << 30 else ("MiB", 1 << 20)
        # Rounded down, so that what is advised fits.
        return f"{math.floor(value / size * 100) / 100:g} {unit} of {name.replace('_', ' ')}"
    return f"{value:g} {_unit(name, value)}"


def _unit(name: str, value: float) -> str:
    if name not in ("CPU", "GPU"):
        return name
    return name if value == 1 else f"{name}s"
