"""Lines of equal waiting jobs, of which only the first is ever considered, and their order.

The planner scans lines and not jobs, so its time does not depend on how many jobs wait behind the first of a line.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from operator import attrgetter

from mlplatform.scheduling.queue import JobClass, WaitingJob

_CLASSES = {job_class: position for position, job_class in enumerate(JobClass)}


@dataclass
class Line:
    """Waiting jobs that differ in nothing that the planner looks at but their arrival, the first one first.

    Attributes:
        shape: equal for requests that fit in the same places.
        position: index of the first job that has neither been started nor got a claim.
    """

    shape: Hashable
    jobs: list[WaitingJob]
    position: int = 0

    @property
    def head(self) -> WaitingJob | None:
        """The first job that waits; None if there are none left."""
        return self.jobs[self.position] if self.position < len(self.jobs) else None


def lines_of(waiting: Iterable[WaitingJob]) -> list[Line]:
    """Sort waiting jobs into lines."""
    lines: dict[Hashable, list[WaitingJob]] = {}
    for job in sorted(waiting, key=attrgetter("sequence")):
        key = job.line
        if key in lines:
            lines[key].append(job)
        else:
            lines[key] = [job]
    return [Line(jobs[0].request.shape, jobs) for jobs in lines.values()]


def class_order(job_class: JobClass) -> int:
    """Return the position of a class: the most urgent is 0."""
    return _CLASSES[job_class]
