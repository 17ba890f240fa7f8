"""Workloads of the simulator: samples of the Philly trace, and generated ones, each seeded."""

from __future__ import annotations

import csv
import lzma
import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlplatform.capacity.resources import Node, Request, Resources, WorkerGroup
from mlplatform_gateway.queue.planner.queue import JobClass, Placement, RunningJob, Team, WaitingJob

TRACE = Path(__file__).with_name("philly.csv.xz")
"""Jobs that a sample draws, of those of 9 October to 3 December 2017 with at most 16 GPUs; `README.md` has source and
license."""

TRACE_JOBS = 57_954
"""Jobs from which the samples are drawn."""

NODES, GPUS_PER_NODE = 8, 8

CPUS_PER_GPU = 12
"""More CPUs than any job of the trace asks for, so that GPUs alone decide."""

HOUR = 3600.0
DAY = 24 * HOUR

_LAZY = 0.3
"""Share of jobs whose owner asks for two weeks instead of an estimate."""

_LIMITS = [hours * HOUR for hours in (0.25, 0.5, 1, 2, 4, 8, 12, 24, 48, 96, 168, 336, 672, 1344)]
"""Round limits, from a quarter of an hour to eight weeks; the longest job of the samples runs for 32 days."""

_SAME_PERSON = 0.5
"""Probability that a team's next job is of the same person as its last: people submit in bursts."""

SEEDS = range(1, 31)
"""Seeds of generated workloads: the planner is compared on all of them."""

# (share of the trace's jobs, seed), chosen for loads of 0.95, 1.01, 0.80 and 0.92. The seeds of samples 2 and 4 were
# fixed after a first trial of the four other policies on sample 1.
SAMPLES: Mapping[int, tuple[float, int]] = {1: (0.13, 1), 2: (0.14, 6), 3: (0.11, 3), 4: (0.14, 4)}


@dataclass(frozen=True)
class Job:
    """A job as the simulator knows it; policies see everything but its duration."""

    id: str
    team: str
    person: str
    arrived: float
    duration_s: float
    limit_s: float | None
    gpus: int
    job_class: JobClass = JobClass.NORMAL

    @property
    def gpu_seconds(self) -> float:
        return self.gpus * self.duration_s

    @property
    def request(self) -> Request:
        """Workers with one GPU each, as `ray.train.ScalingConfig` asks for: they may be on several nodes."""
        return Request(Resources(), WorkerGroup(self.gpus, cpus=1, gpus=1))

    def waiting(self, sequence: int, since: float) -> WaitingJob:
        """Return the job as policies see it in the queue, in which it waits since a time."""
        owner = self.team, self.person, self.job_class
        return WaitingJob(self.id, sequence, *owner, self.request, since, self.limit_s)


def running(job: WaitingJob, placement: Placement, started: float) -> RunningJob:
    """Return a job as policies see it once it has started; its limit is one of the attempt, as in the gateway."""
    owner = job.team, job.person, job.job_class
    ends_by = None if job.limit_s is None else started + job.limit_s
    return RunningJob(job.id, job.sequence, *owner, job.request, placement, started, ends_by)


@dataclass(frozen=True)
class Workload:
    """Jobs in order of arrival, and the cluster and teams that they meet."""

    name: str
    nodes: tuple[Node, ...]
    teams: Mapping[str, Team]
    jobs: tuple[Job, ...]
    seed: int

    @property
    def gpus(self) -> float:
        return sum(node.total["GPU"] for node in self.nodes)

    @property
    def load(self) -> float:
        """GPU-seconds that arrive, divided by those that the cluster has until the last arrival."""
        return sum(job.gpu_seconds for job in self.jobs) / (self.gpus * (self.jobs[-1].arrived - self.jobs[0].arrived))


def make_nodes(sizes: Sequence[int]) -> tuple[Node, ...]:
    """Return idle nodes with the given numbers of GPUs."""
    totals = [{"CPU": float(size * CPUS_PER_GPU), "GPU": float(size)} for size in sizes]
    return tuple(Node(f"node-{index}", True, total, total) for index, total in enumerate(totals))


def make_teams(shares: Mapping[str, int]) -> dict[str, Team]:
    """Return teams with guaranteed shares of GPUs, and the CPUs beside them."""
    return {name: Team(name, float(gpus), float(gpus * CPUS_PER_GPU)) for name, gpus in shares.items()}


def philly(sample: int) -> Workload:
    """Draw one of the four samples of the trace: 8 nodes of 8 GPUs, teams are Philly's virtual clusters.

    The trace has neither persons nor time limits: both are generated. Shares are proportional to the root of a team's
    use, in whole GPUs.
    """
    fraction, seed = SAMPLES[sample]
    rng = random.Random(seed)  # noqa: S311 (a simulation)
    drawn = [rng.random() < fraction for _ in range(TRACE_JOBS)]
    rows = [row for number, *row in _trace() if drawn[number]]
    persons = _Persons(Counter(team for *_, team in rows), rng)
    jobs = tuple(
        Job(f"job-{index:05}", team, persons.next(team), float(arrived), float(duration), _limit(duration, rng), gpus)
        for index, (arrived, duration, gpus, team) in enumerate(rows)
    )
    use: Counter[str] = Counter()
    for job in jobs:
        use[job.team] += int(job.gpu_seconds)
    shares = whole_shares({team: math.sqrt(value) for team, value in use.items()}, NODES * GPUS_PER_NODE)
    nodes = make_nodes([GPUS_PER_NODE] * NODES)
    return Workload(f"philly-{sample}", nodes, make_teams(shares), jobs, seed)


def generated(seed: int, count: int = 2000, nodes: int = 4, load: float = 0.95) -> Workload:
    """Generate jobs: Poisson arrivals by day and night, log-normal durations, sizes of 1 to 8 GPUs, three classes.

    Four teams have equal shares; the first submits half of all jobs.

    Args:
        seed: the same seed gives the same jobs.
        count: number of jobs.
        nodes: nodes of 8 GPUs.
        load: GPU-seconds that arrive, per GPU-second of the cluster, on average.
    """
    rng = random.Random(seed)  # noqa: S311 (a simulation)
    gpus = nodes * GPUS_PER_NODE
    names = [f"team-{index}" for index in range(4)]
    sizes = rng.choices([1, 2, 4, 8], [70, 14, 10, 6], k=count)
    durations = [min(2 * DAY, max(30.0, rng.lognormvariate(math.log(1500), 1.5))) for _ in range(count)]
    gap = sum(map(math.prod, zip(sizes, durations, strict=True))) / (gpus * load * count)
    owners = rng.choices(names, [3, 1, 1, 1], k=count)
    persons = _Persons(Counter(owners), rng)
    classes = rng.choices(list(JobClass), [5, 80, 15], k=count)
    jobs, now = [], 0.0
    for index, (team, size, duration, rank) in enumerate(zip(owners, sizes, durations, classes, strict=True)):
        # Half of the time four times as many: 1.25 times the gap keeps the mean.
        day = 1.25 * (0.5 if math.sin(2 * math.pi * now / DAY) > 0 else 2.0)
        now += rng.expovariate(1 / (gap * day))
        limit = _limit(duration, rng)
        jobs.append(Job(f"job-{index:05}", team, persons.next(team), now, duration, limit, size, rank))
    shares = whole_shares(dict.fromkeys(names, 1.0), gpus)
    return Workload(f"generated-{seed}", make_nodes([8] * nodes), make_teams(shares), tuple(jobs), seed)


def alone(workload: Workload, team: str) -> Workload:
    """Return a team's jobs on a cluster of its own, with the GPUs of its share on one node.

    A job that asks for more GPUs than the share has takes all of them, for as many GPU-seconds as before.
    """
    share = int(workload.teams[team].gpus)
    jobs = tuple(_squeezed(job, share) for job in workload.jobs if job.team == team)
    return Workload(f"{workload.name}/{team}", make_nodes([share]), make_teams({team: share}), jobs, workload.seed)


def whole_shares(weights: Mapping[str, float], total: int) -> dict[str, int]:
    """Split a number of GPUs in proportion to weights: at least one each, by the largest remainder."""
    left = total - len(weights)
    exact = {name: left * weight / sum(weights.values()) for name, weight in weights.items()}
    shares = {name: 1 + math.floor(value) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: (math.floor(exact[name]) - exact[name], name))
    for name in by_remainder[: total - sum(shares.values())]:
        shares[name] += 1
    return shares


def _squeezed(job: Job, gpus: int) -> Job:
    if job.gpus <= gpus:
        return job
    factor = job.gpus / gpus
    limit = job.limit_s and job.limit_s * factor
    return Job(job.id, job.team, job.person, job.arrived, job.duration_s * factor, limit, gpus, job.job_class)


def _trace() -> Iterable[tuple[int, int, int, int, str]]:
    """Yield number, arrival in seconds, duration in seconds, GPUs and virtual cluster of each job."""
    with lzma.open(TRACE, "rt", newline="") as file:
        number, now = -1, 0
        for row in csv.DictReader(file):
            number += int(row["jobs"])
            now += int(row["after"])
            yield number, now, int(row["duration"]), int(row["gpus"]), row["cluster"]


def _limit(duration_s: float, rng: random.Random) -> float:
    """Draw a time limit as people ask for one, which suffices: else policies would complete different work."""
    wanted = 14 * DAY if rng.random() < _LAZY else duration_s * rng.uniform(1.1, 3)
    return next(limit for limit in _LIMITS if limit >= max(wanted, 1.1 * duration_s))


class _Persons:
    """Generator of owners: a team has a person per 40 jobs, with Zipf's weights, who submit in bursts."""

    def __init__(self, jobs: Mapping[str, int], rng: random.Random) -> None:
        self._rng = rng
        self._names = {team: [f"{team}-{n}" for n in range(max(2, count // 40))] for team, count in jobs.items()}
        self._last: dict[str, str] = {}

    def next(self, team: str) -> str:
        if team not in self._last or self._rng.random() > _SAME_PERSON:
            names = self._names[team]
            self._last[team] = self._rng.choices(names, [1 / (n + 1) for n in range(len(names))])[0]
        return self._last[team]
