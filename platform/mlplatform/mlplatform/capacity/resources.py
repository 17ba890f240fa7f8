"""Resources that a job requests or waits for, and their names and amounts in messages."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

LEAST_AMOUNT = 0.0001
"""Smallest amount that Ray accepts (`ray._common.ray_option_utils`); for less, the number that fits would overflow."""

CPU_WEIGHT = 0.01
"""GPUs that one CPU counts for; the hosts that we know have about 12 to 16 CPUs per GPU, so GPUs decide."""

_IN_BYTES = ("memory", "object_store_memory")


@dataclass(frozen=True)
class Resources:
    """Resources that an entry point reserves; the workers of a training reserve their own."""

    cpus: float = 0
    gpus: float = 0
    custom: Mapping[str, float] = field(default_factory=dict)

    def amounts(self) -> dict[str, float]:
        """Return the requested amounts by Ray's names of the resources."""
        return {name: value for name, value in {"CPU": self.cpus, "GPU": self.gpus, **self.custom}.items() if value}


@dataclass(frozen=True)
class WorkerGroup:
    """Equal workers that a training requests, as in `ray.train.ScalingConfig`."""

    count: int
    cpus: float = 1
    gpus: float = 0
    custom: Mapping[str, float] = field(default_factory=dict)

    def amounts(self) -> dict[str, float]:
        """Return the amounts that one worker reserves."""
        return Resources(self.cpus, self.gpus, self.custom).amounts()


@dataclass(frozen=True)
class Request:
    """Everything that a job requests: its entry point, its workers, and the labels of the entry point's node."""

    entrypoint: Resources
    workers: WorkerGroup | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def shape(self) -> Hashable:
        """Equal for requests that fit in the same places."""
        entry, group = self.entrypoint, self.workers
        parts: tuple[Hashable, ...] = (entry.cpus, entry.gpus, *self.labels.items())
        if entry.custom:
            parts += ("custom", *sorted(entry.custom.items()))
        if group:
            parts += ("workers", group.count, group.cpus, group.gpus, *sorted(group.custom.items()))
        return parts

    @cached_property
    def parts(self) -> tuple[Mapping[str, float], Mapping[str, float], int]:
        """Amounts of the entry point and of one worker, and how many workers; 0 if workers ask for nothing."""
        group = self.workers
        one = group.amounts() if group else {}
        return self.entrypoint.amounts(), one, group.count if group and one else 0

    @cached_property
    def sums(self) -> tuple[float, float]:
        """GPUs and CPUs, workers included."""
        entry, group = self.entrypoint, self.workers
        count, gpus, cpus = (group.count, group.gpus, group.cpus) if group else (0, 0, 0)
        return entry.gpus + count * gpus, entry.cpus + count * cpus


@dataclass(frozen=True)
class Node:
    """A node as it is, or as it was when last seen."""

    name: str
    alive: bool
    total: Mapping[str, float]
    free: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)

    def available(self, now: bool) -> Mapping[str, float]:
        """Return the node's resources for jobs: its total, or what is free now."""
        return self.total if not now else self.free if self.alive else {}

    def has(self, labels: Mapping[str, str]) -> bool:
        """Return whether the node matches a Ray label selector, with values `v`, `!v`, `in(v, w)` or `!in(v, w)`."""
        return all(selects(wanted, self.labels.get(key)) for key, wanted in labels.items())


@dataclass(frozen=True)
class Shortage:
    """Resources that a feasible job has to wait for; `str()` gives a sentence for messages."""

    missing: str
    users: tuple[str, ...] = ()
    """Running jobs that hold the missing resources."""

    unavailable: tuple[str, ...] = ()
    """Nodes that were lost recently and may come back."""

    def __str__(self) -> str:
        parts = [f"The job waits for {self.missing}"]
        if self.users:
            parts.append(f"in use by {', '.join(self.users)}")
        if self.unavailable:
            verb = "is" if len(self.unavailable) == 1 else "are"
            parts.append(f"{', '.join(self.unavailable)} {verb} unavailable")
        return "; ".join(parts) + "."


def rate(gpus: float, cpus: float) -> float:
    """Return the rate at which a job is charged, in GPU-seconds per second."""
    return gpus + CPU_WEIGHT * cpus


def describe(amounts: Mapping[str, float]) -> str:
    """Format amounts for people: `8 CPUs and 1 GPU`."""
    words = [format_amount(name, value) for name, value in amounts.items()]
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def selects(wanted: str, value: str | None) -> bool:
    """Return whether a label's value matches one term of a selector."""
    negated, wanted = wanted.startswith("!"), wanted.removeprefix("!")
    listed = wanted.removeprefix("in(").removesuffix(")") if wanted.startswith("in(") else wanted
    choices = {choice.strip() for choice in listed.split(",")} if listed is not wanted else {wanted}
    return (value in choices) != negated


def subtract(free: Mapping[str, float], asked: Mapping[str, float]) -> dict[str, float]:
    """Subtract amounts; return what remains of `free`."""
    return {name: value - asked.get(name, 0) for name, value in free.items()}


def format_amount(name: str, value: float) -> str:
    """Format one amount: `1 GPU`, `2.5 GiB of memory`."""
    if name in _IN_BYTES:
        unit, size = ("GiB", 1 << 30) if value >= 1 << 30 else ("MiB", 1 << 20)
        # Rounded down, so that the advised amount fits.
        return f"{math.floor(value / size * 100) / 100:g} {unit} of {name.replace('_', ' ')}"
    return f"{value:g} {unit_of(name, value)}"


def unit_of(name: str, value: float) -> str:
    """Return the unit of an amount, in the singular or plural."""
    if name not in ("CPU", "GPU"):
        return name
    return name if value == 1 else f"{name}s"
