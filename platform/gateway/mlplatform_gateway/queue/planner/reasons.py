"""Sentences of the planner: why a job waits, and why another is preempted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from mlplatform.capacity.resources import Node, describe, format_amount
from mlplatform.errors import CapacityError
from mlplatform_gateway.queue.planner import feasibility
from mlplatform_gateway.queue.planner.preemption import is_overtime
from mlplatform_gateway.queue.planner.queue import Caps, Reason, Rule, RunningJob, WaitingJob
from mlplatform_gateway.queue.planner.room import EPSILON, Room
from mlplatform_gateway.queue.planner.shares import Amount, Held, Shares

IDLE = "The job's GPUs are idle"
"""Beginning of the sentence for the owner of a job that leaves for this reason."""


def lacks_room(job: WaitingJob, nodes: Sequence[Node], room: Room) -> Reason:
    """Return what a job needs that is not free."""
    request = job.request
    # An amount is negative while more is promised than is free.
    amounts = {name: {key: max(0.0, value) for key, value in free.items()} for name, free in room.free.items()}
    free = [replace(node, free=amounts[node.name]) for node in nodes]
    try:
        shortage = feasibility.check(free, request.entrypoint, request.workers, request.labels)
    except CapacityError as error:
        return Reason(Rule.CAPACITY, f"The job waits for a node that can run it. {error}")
    return Reason(Rule.CAPACITY, str(shortage) if shortage else "The job waits for a node that can run it.")


def beyond_share(job: WaitingJob, shares: Shares) -> Reason:
    """Return by how much a job would exceed its team's share, or that the team's budget is used up."""
    if spent := shares.teams[job.team].spent:
        return Reason(Rule.BUDGET, spent)
    share, sums = shares.of(job.team), _sum(shares.held(job.team), job.request.sums)
    beyond = f"With this job, team {job.team} would hold {sums} of its share of {_amount(share)}"
    if not any(share):
        beyond = f"Team {job.team} has no share of its own"
    return Reason(Rule.SHARE, f"{beyond}, so the job waits for what teams leave over of their shares.")


def in_pieces(job: WaitingJob, shares: Shares) -> Reason:
    """Return why nobody was preempted for a job within its share."""
    return Reason(
        Rule.PIECES,
        f"The job is within its team's share of {_amount(shares.of(job.team))}. What other teams hold beyond their "
        "shares would not leave enough room for it on the nodes where it is.",
    )


def cap(job: WaitingJob, shares: Shares) -> Reason | None:
    """Return the cap of its group, person or team that keeps a job waiting; None if none does."""
    team = shares.teams[job.team]
    if job.at_most is not None and job.group:
        running = shares.counted("group", job.team, job.person, job.group).jobs
        if running >= job.at_most:
            return Reason(Rule.GROUP, f"The job waits for its group: {running} of at most {job.at_most} jobs run.")
    person = _cap(Rule.CAP_PERSON, job.person, shares.counted(job.team, job.person), team.person_caps, job)
    return person or _cap(Rule.CAP_TEAM, f"team {job.team}", shares.counted(job.team), team.caps, job)


def reserved(job: WaitingJob) -> Reason:
    """Return the job for which room is kept."""
    whose = f"{job.id} ({job.person}, team {job.team})"
    return Reason(Rule.RESERVED, f"Room is kept for {whose}, which precedes the job.")


def yields(job: WaitingJob) -> Reason:
    """Return the time until which no job is preempted for this one."""
    until = datetime.fromtimestamp(job.yields_until, UTC)
    return Reason(
        Rule.YIELDS,
        "The job waits until enough is free. It has left because its GPUs were idle, so no other job leaves for it "
        f"until {until:%H:%M} UTC.",
    )


def waits_for(victims: Sequence[RunningJob]) -> Reason:
    """Return the jobs that leave; none if they have left, but Ray still counts their resources as used."""
    if not victims:
        return Reason(Rule.RAY, "The jobs that held the job's room have left; Ray does not list them as gone yet.")
    at_limit = all(victim.notice is not None and not victim.notice.claimant for victim in victims)
    rule = Rule.LIMIT if at_limit else Rule.CLAIM
    names = ", ".join(f"{job.id} ({job.person})" for job in sorted(victims, key=lambda job: job.sequence))
    return Reason(rule, f"The job waits for {names} to leave.")


def why_preempted(victim: RunningJob, claimant: WaitingJob, shares: Shares | None, now: float) -> str:
    """Return the sentence for the owner of a job that is preempted.

    Args:
        victim: the job.
        claimant: the one that needs its room.
        shares: shares of the teams; None if the claimant is beyond its own.
        now: seconds since 1970.
    """
    whose = f"{claimant.id} ({claimant.person}, team {claimant.team})"
    if is_overtime(victim, now):
        return f"The job has reached its limit, and {whose} waits."
    if victim.idle:
        return f"{IDLE}, and {whose} waits."
    hours = (now - claimant.since) / 3600
    if shares is None:
        return f"The job runs beyond its team's share, and {whose}, which came before it, has waited for {hours:.1f} h."
    if victim.team == claimant.team:
        return f"The job leaves its team's share to {whose}, which came before it and has waited for {hours:.1f} h."
    return (
        f"Team {claimant.team} takes back {_amount(claimant.request.sums)} of its share of "
        f"{_amount(shares.of(claimant.team))} for {claimant.id} ({claimant.person})."
    )


_NO_CAPS = Caps()


def _cap(rule: Rule, whose: str, held: Held, caps: Caps, job: WaitingJob) -> Reason | None:
    if caps == _NO_CAPS:
        return None
    if caps.running is not None and held.jobs >= caps.running:
        return Reason(rule, f"The job waits because {whose} runs {held.jobs} jobs, of at most {caps.running}.")
    gpus, cpus = job.request.sums
    for name, have, more, most in (("GPU", held.gpus, gpus, caps.gpus), ("CPU", held.cpus, cpus, caps.cpus)):
        if most is not None and more > EPSILON and have + more > most + EPSILON:
            return Reason(
                rule,
                f"The job waits because {whose} holds {have:g} of at most {format_amount(name, most)}, "
                f"and it asks for {more:g}.",
            )
    return None


def _sum(held: Amount, more: Amount) -> str:
    return _amount((held[0] + more[0], held[1] + more[1]))


def _amount(amount: Amount) -> str:
    amounts = {"GPU": round(amount[0], 4), "CPU": round(amount[1], 4)}
    return describe({name: value for name, value in amounts.items() if value}) or "nothing"
