"""Types of the queue: what the planner is given, and the actions that it returns.

Times are seconds since 1970, durations seconds. Nothing here is mutable, does I/O or reads a clock.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from mlplatform.capacity.resources import CPU_WEIGHT, Node, Request, rate
from mlplatform.errors import SettingsError

Placement = Mapping[str, Mapping[str, float]]
"""Amounts by Ray's names of the resources, by name of the node."""


class JobClass(StrEnum):
    """Class of a job, which orders the jobs of one team and never those of two."""

    URGENT = "urgent"
    NORMAL = "normal"
    IDLE = "idle"

    @property
    def order(self) -> int:
        """Position in the order: the most urgent is 0."""
        return _CLASSES[self]


_CLASSES = {job_class: position for position, job_class in enumerate(JobClass)}


@dataclass(frozen=True)
class Caps:
    """Upper limits for a team or a person in it; None means unlimited.

    Attributes:
        gpus: GPUs held at the same time.
        cpus: CPUs held at the same time.
        running: jobs that run at the same time.
        waiting: jobs that wait at the same time; checked at submission, not by the planner.
    """

    gpus: float | None = None
    cpus: float | None = None
    running: int | None = None
    waiting: int | None = None


@dataclass(frozen=True)
class Team:
    """A team and its guaranteed share.

    A team that is alone has everything, whatever its share is.

    Attributes:
        gpus: GPUs that no other team takes from its jobs.
        cpus: CPUs likewise.
        weight: part of what is left over, relative to other teams; 0 comes last.
        caps: limits of the whole team.
        person_caps: limits of each person in it.
        spent: sentence that says that its budget is used up, so that its jobs run on idle resources only; else empty.

    Raises:
        SettingsError: a share or the weight is negative or not a number.
    """

    name: str
    gpus: float
    cpus: float
    weight: float = 1.0
    caps: Caps = Caps()
    person_caps: Caps = Caps()
    spent: str = ""

    def __post_init__(self) -> None:
        for what, value in (("share of GPUs", self.gpus), ("share of CPUs", self.cpus), ("weight", self.weight)):
            if not (value >= 0 and math.isfinite(value)):
                raise SettingsError(f"The {what} of team {self.name} is {value}; set a number of 0 or more.")


@dataclass(frozen=True)
class Rules:
    """Durations that hold for all teams, in seconds.

    Attributes:
        grace_s: time that a preempted job gets to save its state.
        overdue_s: wait after which a job is first among those beyond the shares, and later borrowers are preempted.
        hold_back_s: time after the deadline at which a job that still runs is considered stuck.
    """

    grace_s: float = 120.0
    overdue_s: float = 72 * 3600.0
    hold_back_s: float = 60.0


@dataclass(frozen=True)
class WaitingJob:
    """A job that may start now.

    Attributes:
        sequence: unique number in the order of arrival, which a preempted job keeps.
        request: with the labels of the nodes that run entry points among its labels.
        since: time at which it began to wait: that of its submission, or of the end of its last attempt.
        limit_s: longest duration of an attempt; None if unlimited.
        group: name of the person's jobs that it belongs to; empty if none.
        at_most: jobs of its group that may run at the same time; None if unlimited.
        yields_until: time until which nobody leaves for it, because its own GPUs were idle when it left; 0 if never.
        reserved: reservation of the room that others leave for it; None if there is none.
    """

    id: str
    sequence: int
    team: str
    person: str
    job_class: JobClass
    request: Request
    since: float
    limit_s: float | None = None
    group: str = ""
    at_most: int | None = None
    yields_until: float = 0.0
    reserved: Reserve | None = None

    @cached_property
    def line(self) -> str:
        """Grouping key: equal for jobs that the planner treats alike but for their arrival.

        It is computed once per job's object, so planning is faster if the same objects are in the next view. A string
        has a faster hash than a tuple of tuples.
        """
        own = self.id if self.reserved else ""
        parts = self.team, self.person, self.job_class.value, self.group, self.at_most, self.limit_s, self.yields_until
        return sys.intern(repr((own, *parts, self.request.shape)))

    @cached_property
    def work(self) -> float:
        """GPU-seconds that it may do until its limit, CPUs included; infinity without a limit."""
        return math.inf if self.limit_s is None else self.limit_s * max(CPU_WEIGHT, rate(*self.request.sums))


@dataclass(frozen=True)
class Notice:
    """A preemption of which a running job has been notified.

    Attributes:
        deadline: time at which it is stopped.
        claimant: id of the job that takes back its resources; empty if it has reached its limit.
    """

    deadline: float
    claimant: str = ""


@dataclass(frozen=True)
class RunningJob:
    """A job with an open attempt.

    Attributes:
        placement: its footprint: the maximum of what it declares and what it holds in Ray, for the whole attempt.
        started: start of the attempt.
        ends_by: time at which it reaches its limit; None if unlimited.
        notice: of its preemption, until the job has left.
        idle: whether its GPUs have been idle for so long that it may be preempted.
        stays: whether it is never preempted, because it would not get the time to save its state.
    """

    id: str
    sequence: int
    team: str
    person: str
    job_class: JobClass
    request: Request
    placement: Placement
    started: float
    ends_by: float | None = None
    notice: Notice | None = None
    idle: bool = False
    stays: bool = False
    group: str = ""


@dataclass(frozen=True)
class Usage:
    """Decayed use at the time of the view, in GPU-seconds, to which CPU-seconds count with a small weight.

    Attributes:
        persons: use of each person.
        borrowed: use of each team beyond its share.
    """

    persons: Mapping[str, float] = field(default_factory=dict)
    borrowed: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class View:
    """Everything that the planner considers.

    Attributes:
        nodes: nodes alive or lost lately. `free` is what Ray reports as free, seconds late. The planner never places
            more than that, but it preempts no job for what only Ray still counts as used. What is in use outside of
            jobs, and lasts, therefore has to be in `running`.
        teams: by name; those of all jobs.
        waiting: jobs that may start now, in any order. A job that may not start yet is left out.
        running: all jobs with an open attempt.
    """

    now: float
    nodes: Sequence[Node]
    teams: Mapping[str, Team]
    waiting: Sequence[WaitingJob] = ()
    running: Sequence[RunningJob] = ()
    usage: Usage = Usage()
    rules: Rules = Rules()


class Rule(StrEnum):
    """Rule that keeps a job waiting."""

    CAPACITY = "capacity"
    """The nodes do not have what it requests: never, or not now."""

    RAY = "ray"
    """Ray counts as used what no running job requests: a job has just left it, or a program holds it."""

    SHARE = "share"
    """It would be beyond its team's share, so it waits for what others leave over."""

    PIECES = "pieces"
    """It is within its team's share, but what others could return would be in pieces that are too small for it."""

    CLAIM = "claim"
    """It waits for preempted jobs to leave."""

    LIMIT = "limit"
    """It waits for jobs to leave that have reached their limit."""

    RESERVED = "reserved"
    """Room is kept for a job that precedes it."""

    YIELDS = "yields"
    """Its GPUs were idle when it left, so for a while it only gets what is free."""

    BUDGET = "budget"
    CAP_PERSON = "cap-person"
    CAP_TEAM = "cap-team"
    GROUP = "group"


@dataclass(frozen=True)
class Reason:
    """A rule that keeps a job waiting, and a sentence on it with the numbers."""

    rule: Rule
    text: str


@dataclass(frozen=True)
class Start:
    """Start a waiting job.

    Attributes:
        within_share: whether it is within its team's share.
        placement: the nodes on which the planner counts it; Ray may choose others.
    """

    job: str
    within_share: bool
    placement: Placement


@dataclass(frozen=True)
class Preempt:
    """Preempt a running job.

    Attributes:
        deadline: time at which it is stopped.
        claimant: id of the job that takes back its resources; empty if it has reached its limit.
        why: sentence for its owner.
    """

    job: str
    deadline: float
    claimant: str
    why: str


@dataclass(frozen=True)
class Reserve:
    """Reserve room for a waiting job while the jobs that hold it leave.

    It replaces what was reserved for the job before.

    Attributes:
        placement: the room.
        deadline: time at which the last of those jobs is stopped.
    """

    job: str
    placement: Placement
    deadline: float


@dataclass(frozen=True)
class Explain:
    """Explanation for a job that keeps waiting.

    Attributes:
        reasons: the rules that keep it waiting.
        latest_start: time at which it starts if all jobs run up to their limits; None if unknown.
    """

    job: str
    reasons: tuple[Reason, ...]
    latest_start: float | None = None


Action = Start | Preempt | Reserve | Explain
"""Actions are executed in the order of the plan, each in a transaction of its own."""
