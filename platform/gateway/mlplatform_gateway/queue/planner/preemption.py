"""Choice of the running jobs that are preempted so that a waiting job fits."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence

from mlplatform.capacity.resources import Request
from mlplatform_gateway.queue.planner.queue import Placement, RunningJob
from mlplatform_gateway.queue.planner.room import Room
from mlplatform_gateway.queue.planner.shares import Shares, ratio


def is_overtime(job: RunningJob, now: float) -> bool:
    """Return whether a job has reached its limit, and runs on because nobody waits for its resources."""
    return job.ends_by is not None and job.ends_by <= now


def for_anybody(staying: Iterable[RunningJob], now: float) -> list[RunningJob]:
    """Return the jobs that leave for any job, the lowest class and the youngest first: those at their limit, idle ones.

    Args:
        staying: running jobs that were not preempted.
        now: seconds since 1970.
    """
    able = [job for job in staying if (is_overtime(job, now) or job.idle) and not job.stays and job.placement]
    return sorted(able, key=lambda job: (is_overtime(job, now), *_youth(job)), reverse=True)


def borrowers(
    staying: Iterable[RunningJob], shares: Shares, gone: Container[str], may_leave: Callable[[RunningJob], bool]
) -> Iterator[RunningJob]:
    """Yield the jobs beyond the shares of their teams in the order in which they are preempted.

    The next is always of the team that is furthest beyond its share, of the lowest class and the youngest. A team's
    jobs are taken only while it is beyond its share, so it falls below only if one job straddles the share.

    Args:
        staying: running jobs that were not preempted.
        shares: of the teams.
        gone: ids of jobs that count as gone.
        may_leave: returns whether a job may be preempted at all.
    """
    teams: dict[str, list[RunningJob]] = defaultdict(list)
    for job in staying:
        if job.id not in gone:
            teams[job.team].append(job)

    def following(team: str) -> tuple[float, float, int, RunningJob] | None:
        jobs = teams[team]
        beyond = shares.borrowed(team, jobs)
        able = [job for job in jobs if job.id in beyond and not job.stays and may_leave(job)]
        if not able:
            return None
        amounts = [shares.amount(job) for job in jobs]
        part = ratio((sum(gpus for gpus, _ in amounts), sum(cpus for _, cpus in amounts)), shares.of(team))
        first = max(able, key=_youth)
        # Of two teams that are equally far beyond their shares, the younger job decides.
        return part, first.started, first.sequence, first

    heads = {team: head for team in teams if (head := following(team))}
    while heads:
        team = max(heads, key=lambda team: heads[team][:3])
        victim = heads.pop(team)[3]
        yield victim
        teams[team].remove(victim)
        if head := following(team):
            heads[team] = head


def _youth(job: RunningJob) -> tuple[int, float, int]:
    return job.job_class.order, job.started, job.sequence


def fewest(
    order: Sequence[RunningJob], leaving: Sequence[RunningJob], request: Request, later: Room
) -> tuple[list[RunningJob], Placement | None]:
    """Return jobs that make a request fit: the first of an order, and those that leave anyhow, if they help.

    Args:
        order: jobs that may be preempted.
        leaving: jobs that leave.
        request: what has to fit.
        later: room once those have left that do.

    Returns:
        The jobs, and where the request then fits; no place if it does not fit even after all have left.
    """

    def after(count: int) -> Room:
        room = later.copy()
        for victim in order[:count]:
            room.give(victim.placement)
        return room

    if after(len(order)).place(request) is None:
        return [], None
    count = bisect_left(range(len(order)), True, key=lambda count: after(count).place(request) is not None)
    room, needed = after(count), list[RunningJob]()
    placement = room.place(request)
    for victim in [*order[:count][::-1], *leaving[::-1]]:
        room.take(victim.placement)
        if (without := room.place(request)) is None:
            room.give(victim.placement)
            needed.append(victim)
        else:
            placement = without
    return needed[::-1], placement
