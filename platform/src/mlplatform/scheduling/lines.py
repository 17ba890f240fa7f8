"""Lines of equal waiting jobs, and groups of lines that fit in the same places.

Only the first job of a line is ever considered, and a group whose first job has to wait for room is not looked at
further. The time of a plan therefore grows with what starts, and hardly with what waits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from mlplatform.scheduling.queue import JobClass, Reason, WaitingJob

_CLASSES = {job_class: position for position, job_class in enumerate(JobClass)}


@dataclass
class Line:
    """Waiting jobs that differ in nothing that the planner looks at but their arrival, the first one first.

    Attributes:
        position: index of the first job that has neither been started nor got a claim.
        obstacle: what keeps this line waiting, and not all lines of its group.
    """

    jobs: list[WaitingJob]
    position: int = 0
    obstacle: Reason | None = None

    @property
    def head(self) -> WaitingJob | None:
        """The first job that waits; None if there are none left."""
        return self.jobs[self.position] if self.position < len(self.jobs) else None

    def advance(self, is_served: Callable[[WaitingJob], bool]) -> WaitingJob | None:
        """Go on to the first job that is not served, and return it; None if there are none left."""
        while (job := self.head) and is_served(job):
            self.position += 1
        return job


@dataclass(frozen=True)
class Group:
    """Lines of one team whose jobs fit in the same places: of several persons, classes, groups and limits."""

    team: str
    shape: Hashable
    lines: list[Line]


def groups_of(waiting: Iterable[WaitingJob]) -> list[Group]:
    """Sort waiting jobs into lines, and these into groups.

    Args:
        waiting: in the order of arrival.
    """
    lines: dict[Hashable, list[WaitingJob]] = defaultdict(list)
    for job in waiting:
        lines[job.line].append(job)
    groups: dict[tuple[str, Hashable], Group] = {}
    for jobs in lines.values():
        key = jobs[0].team, jobs[0].request.shape
        if key not in groups:
            groups[key] = Group(*key, [])
        groups[key].lines.append(Line(jobs))
    return list(groups.values())


def class_order(job_class: JobClass) -> int:
    """Return the position of a class: the most urgent is 0."""
    return _CLASSES[job_class]
