"""Peak memory of a stack's containers while a command runs, as `docker stats` reports it."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from host import Stack, run

GIB = {"B": 2**-30, "KiB": 2**-20, "MiB": 2**-10, "GiB": 1.0, "TiB": 1024.0}


@dataclass
class Peaks:
    """Largest samples of memory in GiB, with the page cache that is in use."""

    containers: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Peak and limit of each container. Without a limit of its own, this is the host's memory."""

    total: float = 0
    """Peak of all containers together."""

    def add(self, sample: dict[str, tuple[float, float]]) -> None:
        """Take the use and the limit of each container at one moment into account."""
        for name, (used, limit) in sample.items():
            peak, _ = self.containers.get(name, (0.0, limit))
            self.containers[name] = max(peak, used), limit
        self.total = max(self.total, sum(used for used, _ in sample.values()))

    def part_of_limit(self, container: str) -> float:
        peak, limit = self.containers[container]
        return peak / limit

    def largest(self) -> str:
        """The container that used most, with its peak and its limit."""
        if not self.containers:
            return "not sampled"
        name = max(self.containers, key=lambda each: self.containers[each][0])
        peak, limit = self.containers[name]
        return f"{peak:.1f} of {limit:.0f} GiB ({name})"


def memory_of(stack: Stack) -> dict[str, tuple[float, float]]:
    """Use and limit of each running container's memory, in GiB; takes 2.5 s."""
    names = [entry["Name"].strip("/") for entry in stack.containers() if entry["State"]["Running"]]
    # Fails if a container was removed meanwhile.
    listed = run("docker", "stats", "--no-stream", "--format", "{{.Name}} {{.MemUsage}}", *names, check=False).stdout
    lines = re.findall(r"(\S+) ([\d.]+)(\w+) / ([\d.]+)(\w+)", listed)
    return {name: (float(used) * GIB[unit], float(limit) * GIB[its]) for name, used, unit, limit, its in lines}


@contextmanager
def peak_memory(stack: Stack) -> Iterator[Peaks]:
    """Sample the stack's containers until the block ends."""
    peaks = Peaks()
    ended = threading.Event()

    def sample() -> None:
        while not ended.is_set():
            peaks.add(memory_of(stack))

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        yield peaks
    finally:
        ended.set()
        sampler.join(10)
