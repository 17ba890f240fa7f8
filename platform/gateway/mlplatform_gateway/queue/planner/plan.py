"""Planner of the queue: which jobs start, which are preempted, and why the others wait.

The contract: what runs within its team's share, no other team takes back. What is free anybody may borrow; a borrower
that is preempted gets time to save its state, and keeps its place. Borrowers leave for jobs within their teams' shares,
and for overdue jobs that came before them. Within a team, jobs that have waited for long are first, and later ones
leave the share to them; then the class decides, then the work that a job asks for, with regard to what its person has
used lately, then the arrival. No job waits indefinitely for others than those within their shares and those that are
never preempted, also not beneath a cap.

The planner is a pure function of the view. It decides on one action at a time, each for the state that the last one
leads to: executing only the first actions of a plan and planning again therefore leads to the same end, and a plan for
the state that a plan leads to is empty.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import replace
from itertools import islice

from mlplatform_gateway.queue.planner import reasons
from mlplatform_gateway.queue.planner.queue import Action, Explain, Reason, Rule, RunningJob, Start, View, WaitingJob
from mlplatform_gateway.queue.planner.room import Room
from mlplatform_gateway.queue.planner.round import Round
from mlplatform_gateway.queue.planner.state import State, execute, with_free

MOST_ROUNDS = 2000
"""Rounds of a plan. None needs as many, and if one did not settle, the next plan continues where it has stopped."""

MOST_PLANS = 200
"""Plans per forecast; a start that would need more is unknown."""


def plan(view: View) -> list[Action]:
    """Return what to do now, in the order in which to do it.

    Args:
        view: everything that is known.

    Returns:
        Starts, preemptions and reservations, and then an explanation for each job that is promised its room, and for
        the first other one of each line of equal jobs; those behind it wait for the same reasons, and `queue()` has
        them all.
    """
    actions, state, last = _settle(view)
    jobs = [state.waiting[name] for name in last.promises]
    for line in state.lines.values():
        jobs += islice((job for job in line if job.id not in last.promises), 1)
    return [*actions, *_explain(jobs, state, last)]


def queue(view: View) -> list[Explain]:
    """Return an explanation for each job that keeps waiting, in the order in which they are considered."""
    _, state, last = _settle(view)
    jobs = sorted(state.waiting.values(), key=lambda job: (job.id not in last.promises, *last.order.rank(job)))
    return list(_explain(jobs, state, last))


def _settle(view: View) -> tuple[list[Action], State, Round]:
    """Return all actions, the state that they lead to, and the round for it, in which nothing is left to do."""
    state, actions = State(view), list[Action]()
    for _ in range(MOST_ROUNDS):
        last = Round(state)
        actions += last.actions
        if not last.actions:
            break
    return actions, state, last


def _explain(jobs: Iterable[WaitingJob], state: State, last: Round) -> Iterator[Explain]:
    """Yield why jobs wait."""
    kept = last.reservation
    known: dict[Hashable, tuple[Reason, ...]] = {}
    for job in jobs:
        if job.id in last.promises:
            yield _explain_promise(job, state, last)
        elif obstacle := last.obstacles.get(state.line(job)) or reasons.cap(job, last.shares):
            yield Explain(job.id, (obstacle,))
        else:
            key = job.team, job.request.shape, last.shares.includes(job), job.id in last.lagging
            if key not in known:
                known[key] = _lacks(job, state, last)
            latest = max(state.now, kept.time) if kept and kept.job is job and kept.time < math.inf else None
            yield Explain(job.id, known[key], latest)


def _explain_promise(job: WaitingJob, state: State, last: Round) -> Explain:
    leaving = state.leaving_for(job, last.promises[job.id])
    latest = state.latest_end(job, last.promises[job.id]) + state.rules.hold_back_s
    reason = reasons.waits_for(leaving)
    if not leaving and job.reserved and job.reserved.deadline <= state.now:  # it waits for Ray only
        reason = Reason(Rule.RAY, reasons.lacks_room(job, state.view.nodes, last.now).text)
    return Explain(job.id, (reason,), latest)


def _lacks(job: WaitingJob, state: State, last: Round) -> tuple[Reason, ...]:
    """Return why the jobs of a team and shape wait, which do not fit."""
    lack = reasons.lacks_room(job, state.view.nodes, last.now)
    if state.empty.place(job.request) is not None:
        if job.id in last.lagging:
            # Ray's accounts are behind, or a program that has connected directly uses it.
            return (Reason(Rule.RAY, lack.text),)
        if not last.shares.alone:
            describe = reasons.in_pieces if last.shares.includes(job) else reasons.beyond_share
            return lack, describe(job, last.shares)
    return (lack,)


def forecast(view: View) -> dict[str, float | None]:
    """Return by job id the latest time at which each waiting job starts; None if it is unknown.

    Running jobs are taken to run up to their limits, and to leave as late as they may. The times hold if no job that
    precedes the waiting one arrives or is restarted. There is none where a job without a limit has to end first.
    """
    starts: dict[str, float | None] = {job.id: None for job in view.waiting}
    limits = {job.id: job.limit_s for job in view.waiting}
    for _ in range(MOST_PLANS):
        actions = plan(view)
        for action in actions:
            if isinstance(action, Start) and starts.get(action.job, 0.0) is None:
                starts[action.job] = view.now
        view = execute(view, actions)
        later = min((time for time in _events(view) if time > view.now), default=math.inf)
        if later == math.inf or not any(starts.get(job.id, 0.0) is None for job in view.waiting):
            break
        view = _advance(view, later, limits)
    return starts


def _events(view: View) -> Iterator[float]:
    """Yield the times at which the plan may change."""
    for job in view.running:
        if job.notice is not None:
            yield job.notice.deadline + view.rules.hold_back_s
        elif job.ends_by is not None:
            yield job.ends_by
    for waiting in view.waiting:
        yield waiting.since + view.rules.overdue_s


def _advance(view: View, now: float, limits: dict[str, float | None]) -> View:
    """Return the view at a later time, at which those have left that were preempted."""
    free = Room(view.nodes, {node.name: node.free for node in view.nodes})
    stay, waiting = list[RunningJob](), list(view.waiting)
    for job in view.running:
        if job.notice is None or now < job.notice.deadline + view.rules.hold_back_s:
            stay.append(job)
            continue
        free.give(job.placement)
        if job.notice.claimant:
            limit = limits.get(job.id, None if job.ends_by is None else job.ends_by - job.started)
            again = (job.id, job.sequence, job.team, job.person, job.job_class, job.request, now, limit)
            waiting.append(WaitingJob(*again, group=job.group))
    return replace(view, now=now, nodes=with_free(view.nodes, free), waiting=tuple(waiting), running=tuple(stay))
