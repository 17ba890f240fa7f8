"""Accounts, promises and rights with which the tests of the planner's invariants compare its plans."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from queues import effects

from mlplatform_gateway.queue.planner.backfill import reserve
from mlplatform_gateway.queue.planner.queue import Action, Caps, Placement, Preempt, RunningJob, Usage, View, WaitingJob
from mlplatform_gateway.queue.planner.room import Room
from mlplatform_gateway.queue.planner.shares import Shares
from mlplatform_gateway.queue.planner.state import State

Job = TypeVar("Job", WaitingJob, RunningJob)


def accounts(view: View) -> Room:
    """Return what the running jobs leave free on all nodes, lost ones included."""
    room = Room(view.nodes, {node.name: node.total for node in view.nodes})
    for job in view.running:
        room.take(job.placement)
    return room


def caught_up(view: View) -> View:
    """Return the view in which Ray reports as free what the running jobs leave free."""
    free = accounts(view).free
    return replace(view, nodes=tuple(replace(node, free=free[node.name]) for node in view.nodes))


def own_room(view: View, promises: Mapping[str, Placement]) -> Room:
    """Return what is free on living nodes by the planner's own accounts, less what is promised."""
    room = State(view).own
    for placement in promises.values():
        room.take(placement)
    return room


def hold(view: View, promises: Mapping[str, Placement], job: WaitingJob) -> float:
    """Return the latest start of a job if nothing else starts; infinity if unknown."""
    kept = reserve(job, State(view), own_room(view, promises))
    return max(view.now, kept.time) if kept else math.inf


def is_uncapped(view: View, job: WaitingJob) -> bool:
    team = view.teams[job.team]
    return team.caps == Caps() and team.person_caps == Caps() and not job.group


def is_within(view: View, promises: Mapping[str, Placement], job: WaitingJob) -> bool:
    """Return whether a job is within its share, counting what others are promised."""
    shares = Shares(view.teams, view.nodes)
    promised = [other for other in view.waiting if other.id in promises and other is not job]
    for other in (*view.running, *promised):
        shares.add(other)
    return shares.includes(job)


def is_senior(view: View, promises: Mapping[str, Placement], job: WaitingJob) -> bool:
    """Return whether a job has waited for long, and would be within its share if later jobs of its team left."""
    before = [one for one in view.running if one.team == job.team and one.sequence < job.sequence]
    promised = [one for one in view.waiting if one.team == job.team and one.id in promises and one is not job]
    return State(view).is_senior(job) and Shares(view.teams, view.nodes).includes_after(job, [*before, *promised])


def could_take_back(view: View, promises: Mapping[str, Placement], shares: Shares, job: WaitingJob) -> bool:
    """Return whether a job would fit if one job left that may be asked to; only promises within shares count."""
    room = Room(view.nodes, {node.name: node.total for node in view.nodes if node.alive})
    for other in view.running:
        is_leaving = other.notice is not None and view.now <= other.notice.deadline + view.rules.hold_back_s
        if not is_leaving:
            room.take(other.placement)
    for waiting in view.waiting:
        if waiting.id in promises and is_within(view, promises, waiting):
            room.take(promises[waiting.id])
    for other in view.running:
        staying = [one for one in view.running if one.team == other.team and one.notice is None]
        borrowed = other.id in shares.borrowed(other.team, staying)
        if other.team != job.team and other.notice is None and borrowed and not other.stays:
            with_it = room.copy()
            with_it.give(other.placement)
            if with_it.place(job.request) is not None:
                return True
    return False


SWAPPED = {"a": "b", "b": "a"}


def renamed(view: View) -> View:
    """Return a view in which teams a and b, and their persons, have each other's names."""

    def name(old: str) -> str:
        return SWAPPED.get(old[0], old[0]) + old[1:]

    def renamed(job: Job) -> Job:
        return replace(job, team=name(job.team), person=name(job.person))

    return replace(
        view,
        teams={name(team.name): replace(team, name=name(team.name)) for team in view.teams.values()},
        waiting=tuple(map(renamed, view.waiting)),
        running=tuple(map(renamed, view.running)),
        usage=Usage(
            {name(person): used for person, used in view.usage.persons.items()},
            {name(team): used for team, used in view.usage.borrowed.items()},
        ),
    )


def without_text(actions: list[Action]) -> list[Action]:
    return [replace(action, why="") if isinstance(action, Preempt) else action for action in effects(actions)]
