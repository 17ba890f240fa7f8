"""Problems that prevent a start, and settings that no longer fit the host."""

from __future__ import annotations

from collections.abc import Iterator

from mlplatform.errors import HostError
from mlplatform.stack import doctor, sizing, unfinished
from mlplatform.stack.checks.finding import Finding, Place
from mlplatform.stack.host import this_host


def start_problems(place: Place) -> Iterator[Finding]:
    """Yield what `make up` refuses to start with: engine, drivers, disk, images, ports and networks."""
    try:
        doctor.check_host(place.root, place.only)
    except HostError as error:
        for line in str(error).splitlines():
            problem, _, fix = line.partition(": ")
            yield Finding(problem, "The stack cannot start like this.", fix or line, blocks=True)


def interrupted(place: Place) -> Iterator[Finding]:
    """Yield an upgrade, a rotation of secrets or a restore that was interrupted."""
    for _, sentence in unfinished.interrupted(place.root):
        problem, _, fix = sentence.partition(": ")
        yield Finding(problem, "Services are stopped, or have a part of their data or secrets only.", fix, blocks=True)


def misfits(place: Place) -> Iterator[Finding]:
    """Yield the settings that no longer fit this host."""
    for sentence in sizing.misfits(place.settings, this_host()):
        problem, _, fix = sentence.partition(": ")
        yield Finding(problem, "Jobs run out of memory, or leave hardware unused.", fix)
