"""Invariants of the planner over random nodes, teams, jobs, losses and kills of what executes its plans.

The machine executes plans as the gateway does: action by action, and a kill may end that between any two. Ray starts
jobs where the planner counts them, and some of those that are asked to leave do not.
"""

import math
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from queues import effects, is_beyond_share, left

from mlplatform.scheduling.capacity import check
from mlplatform.scheduling.decay import Decayed
from mlplatform.scheduling.forecast import execute
from mlplatform.scheduling.plan import plan, queue
from mlplatform.scheduling.queue import (
    Action,
    Ask,
    Caps,
    JobClass,
    Rules,
    RunningJob,
    Say,
    Start,
    Team,
    Usage,
    View,
    WaitingJob,
)
from mlplatform.scheduling.resources import Node, Request, Resources, WorkerGroup
from mlplatform.scheduling.room import Room, total
from mlplatform.scheduling.room import asked as amount_of
from mlplatform.scheduling.shares import Shares

EPSILON = 1e-6
Job = TypeVar("Job", WaitingJob, RunningJob)
RULES = Rules(grace_s=100, overdue_s=5000, hold_back_s=50)
NAMES = ("a", "b", "c")
MOST_KILLS = 300
IDLE_S = 400.0

REQUESTS = st.one_of(
    st.builds(lambda gpus, cpus: Request(Resources(cpus, gpus)), st.sampled_from([0, 0.5, 1, 2, 4]), st.integers(0, 4)),
    st.builds(
        lambda count, gpus: Request(Resources(1), WorkerGroup(count, 1, gpus)), st.integers(1, 6), st.integers(0, 2)
    ),
)

TEAMS = st.lists(
    st.builds(
        lambda gpus, weight, caps, person_caps: (gpus, weight, caps, person_caps),
        st.integers(0, 6),
        st.sampled_from([0.0, 1.0, 1.0, 3.0]),
        st.sampled_from([Caps(), Caps(), Caps(gpus=5), Caps(running=3)]),
        st.sampled_from([Caps(), Caps(), Caps(gpus=3), Caps(running=2)]),
    ),
    min_size=1,
    max_size=3,
)


class Queue(RuleBasedStateMachine):
    """A cluster, and what has been stored about its queue."""

    def __init__(self) -> None:
        super().__init__()
        self.view = View(0.0, (), {"a": Team("a", 0, 0)}, rules=RULES)
        self.number = 0
        self.asked_at: dict[str, float] = {}
        self.asks: dict[str, int] = {}
        self.runtime: dict[str, float] = {}
        self.idlers: set[str] = set()

    @initialize(gpus=st.lists(st.integers(0, 4), min_size=1, max_size=4), teams=TEAMS)
    def build(self, gpus: list[int], teams: list[tuple[int, float, Caps, Caps]]) -> None:
        named = {
            name: Team(name, share, share * 4, weight, caps, person_caps)
            for name, (share, weight, caps, person_caps) in zip(NAMES, teams, strict=False)
        }
        nodes = tuple(Node(f"n{i}", True, amounts, amounts) for i, amounts in enumerate(map(_amounts, gpus)))
        self.view = replace(self.view, nodes=nodes, teams=named)

    # --- what happens ---

    @rule(
        team=st.integers(0, 2),
        person=st.integers(0, 1),
        job_class=st.sampled_from(list(JobClass)),
        request=REQUESTS,
        limit=st.sampled_from([None, 200.0, 1000.0, 4000.0]),
        array=st.sampled_from(["", "", "sweep"]),
    )
    def submit(
        self, team: int, person: int, job_class: JobClass, request: Request, limit: float | None, array: str
    ) -> None:
        self.number += 1
        name = list(self.view.teams)[team % len(self.view.teams)]
        job = WaitingJob(
            f"j{self.number}",
            self.number,
            name,
            f"{name}-{person}",
            job_class,
            request,
            self.view.now,
            limit,
            array=array and f"{array}-{name}",
            at_most=2 if array else None,
        )
        self.view = replace(self.view, waiting=(*self.view.waiting, job))

    @rule(seconds=st.sampled_from([1.0, 60.0, 100.0, 151.0, 400.0, 2500.0]))
    def wait(self, seconds: float) -> None:
        """Time passes, and most of those that were asked to leave do."""
        self.view = replace(self.view, now=self.view.now + seconds)
        for job in self.view.running:
            if job.notice and job.notice.deadline <= self.view.now and job.sequence % 7:
                self._leave(job, again=bool(job.notice.claimant))

    @precondition(lambda self: self.view.running)
    @rule(index=st.integers(0, 20))
    def finish(self, index: int) -> None:
        self._leave(self.view.running[index % len(self.view.running)], again=False)

    @precondition(lambda self: self.view.waiting)
    @rule(index=st.integers(0, 20))
    def stop_waiting_job(self, index: int) -> None:
        gone = self.view.waiting[index % len(self.view.waiting)]
        self.view = replace(self.view, waiting=tuple(job for job in self.view.waiting if job is not gone))

    @rule(index=st.integers(0, 3))
    def lose_or_regain_a_node(self, index: int) -> None:
        nodes = list(self.view.nodes)
        index %= len(nodes)
        # A plan takes it that nothing is free on a lost node; it returns empty.
        nodes[index] = replace(nodes[index], alive=not nodes[index].alive, free=nodes[index].total)
        name = nodes[index].name
        self.view = replace(self.view, nodes=tuple(nodes))
        for job in self.view.running:
            if name in job.placement:
                self._leave(job, again=True)

    @precondition(lambda self: self.view.running)
    @rule(index=st.integers(0, 20), to=st.integers(0, 3))
    def ray_chose_another_node(self, index: int, to: int) -> None:
        """Which leaves free resources in pieces that the planner would not have left."""
        job, target = self.view.running[index % len(self.view.running)], self.view.nodes[to % len(self.view.nodes)]
        if len(job.placement) != 1 or not target.alive:
            return
        ((source, amounts),) = job.placement.items()
        free = Room(self.view.nodes, {node.name: node.free for node in self.view.nodes})
        free.give({source: amounts})
        free.take({target.name: amounts})
        if min(free.free[target.name].values(), default=0) >= 0:
            moved = replace(job, placement={target.name: amounts})
            nodes = tuple(replace(node, free=free.free[node.name]) for node in self.view.nodes)
            running = tuple(moved if other is job else other for other in self.view.running)
            self.view = replace(self.view, nodes=nodes, running=running)

    @precondition(lambda self: self.view.running)
    @rule(index=st.integers(0, 20))
    def becomes_idle_or_busy(self, index: int) -> None:
        index %= len(self.view.running)
        running = [replace(job, idle=job.idle ^ (i == index)) for i, job in enumerate(self.view.running)]
        self.view = replace(self.view, running=tuple(running))

    @rule(
        borrowed=st.lists(st.floats(0, 1e6), min_size=3, max_size=3),
        persons=st.lists(st.floats(0, 1e6), min_size=6, max_size=6),
    )
    def use(self, borrowed: list[float], persons: list[float]) -> None:
        names = [f"{team}-{number}" for team in NAMES for number in (0, 1)]
        usage = Usage(dict(zip(names, persons, strict=True)), dict(zip(NAMES, borrowed, strict=True)))
        self.view = replace(self.view, usage=usage)

    @rule(steps=st.integers(1, 3))
    def execute_until_killed(self, steps: int) -> None:
        self._execute(effects(plan(self.view))[:steps])

    @rule()
    def execute_whole_plan(self) -> None:
        actions = plan(self.view)
        self._execute(effects(actions))
        assert effects(plan(self.view)) == [], "a plan for the state that a plan led to is empty"
        kept, later = _latest(actions), _latest(plan(self.view))
        assert all(later.get(job, -math.inf) <= time + EPSILON for job, time in kept.items()), (
            "no start delays room that is kept"
        )

    @rule(steps=st.integers(1, 4))
    def killed_in_between_comes_to_the_same_end(self, steps: int) -> None:
        actions = effects(plan(self.view))
        whole, parts = execute(self.view, actions), self.view
        for _ in range(MOST_KILLS):
            if not (rest := effects(plan(parts))):
                break
            parts = execute(parts, rest[:steps])
        assert rest == [], "plans that are killed come to an end"
        assert {job.id for job in parts.running} == {job.id for job in whole.running}
        assert {claim.job for claim in parts.claims} == {claim.job for claim in whole.claims}
        assert _noticed(parts) == _noticed(whole)

    @rule()
    def swapping_two_names_changes_nothing(self) -> None:
        assert _without_text(plan(_renamed(self.view))) == _without_text(plan(self.view))

    # --- what holds ---

    def _execute(self, actions: list[Action]) -> None:
        for action in actions:
            before = self.view
            if isinstance(action, Start):
                self._check_start(action)
            elif isinstance(action, Ask):
                self._check_ask(action)
                if next(job.idle for job in before.running if job.id == action.job):
                    self.idlers.add(action.job)
            self.view = execute(before, [action])

    def _check_start(self, start: Start) -> None:
        job = next(job for job in self.view.waiting if job.id == start.job)
        placed, wanted = total(start.placement), amount_of(job.request)
        assert placed == pytest.approx(wanted), "a job gets what it asks for, whole"
        free = [replace(node, free=node.free if node.alive else {}) for node in self.view.nodes]
        assert check(free, job.request.entrypoint, job.request.workers) is None

    def _check_ask(self, ask: Ask) -> None:
        view = self.view
        victim = next(job for job in view.running if job.id == ask.job)
        assert victim.notice is None, "nobody is asked twice"
        assert ask.deadline >= view.now + RULES.grace_s
        assert not any(job.id == ask.claimant and job.yields_until > view.now for job in view.waiting)
        overtime = victim.ends_by is not None and victim.ends_by <= view.now
        if not overtime and not victim.idle:
            assert is_beyond_share(view, victim), "within its share nothing is taken back"
            claimant = next(job for job in view.waiting if job.id == ask.claimant)
            others = replace(view, claims=[claim for claim in view.claims if claim.job != claimant.id])
            if not _is_within(others, claimant):
                assert claimant.since + RULES.overdue_s <= view.now
                assert claimant.sequence < victim.sequence, "two jobs do not drive each other out in turns"
            else:
                assert claimant.team != victim.team

    @invariant()
    def no_node_is_oversubscribed(self) -> None:
        used = Room(self.view.nodes, {node.name: node.total for node in self.view.nodes})
        for job in self.view.running:
            used.take(job.placement)
        assert all(value >= -EPSILON for free in used.free.values() for value in free.values())

    @invariant()
    def caps_hold(self) -> None:
        for team in self.view.teams.values():
            jobs = [job for job in self.view.running if job.team == team.name]
            for caps, held in (
                (team.caps, jobs),
                *((team.person_caps, [job for job in jobs if job.person == f"{team.name}-{n}"]) for n in (0, 1)),
            ):
                assert caps.running is None or len(held) <= caps.running
                assert caps.gpus is None or sum(total(job.placement)[0] for job in held) <= caps.gpus + EPSILON
            assert sum(1 for job in jobs if job.array) <= 2

    @invariant()
    def every_waiting_job_is_explained(self) -> None:
        actions = plan(self.view)
        waiting = {job.id for job in execute(self.view, effects(actions)).waiting}
        says = queue(self.view)
        assert sorted(say.job for say in says) == sorted(waiting)
        assert all(say.reasons and all(reason.text.endswith(".") for reason in say.reasons) for say in says)

    @invariant()
    def what_is_owed_comes_within_grace(self) -> None:
        """A job within its share has a claim with a near deadline if one borrower may be asked and makes it fit."""
        after = execute(self.view, effects(plan(self.view)))
        shares = Shares(after.teams, after.nodes)
        running = {job.id: job for job in after.running}
        for claim in after.claims:
            leaving = [running[name].notice for name in claim.victims if name in running]
            assert all(notice and after.now <= notice.deadline + RULES.hold_back_s for notice in leaving)
            assert claim.deadline <= after.now + RULES.grace_s
        if not shares.alone:
            for job in after.waiting:
                claimed = job.id in {claim.job for claim in after.claims}
                yields = job.yields_until > after.now
                if not (claimed or yields) and _is_uncapped(after, job) and _is_within(after, job):
                    assert not _could_take_back(after, shares, job), job

    def _leave(self, job: RunningJob, again: bool) -> None:
        self.view = left(self.view, job.id)
        if again:
            limit = None if job.ends_by is None else job.ends_by - job.started
            shape = (job.id, job.sequence, job.team, job.person, job.job_class, job.request, self.view.now, limit)
            yields_until = self.view.now + IDLE_S if job.id in self.idlers else 0
            back = WaitingJob(*shape, job.array, 2 if job.array else None, yields_until)
            self.view = replace(self.view, waiting=(*self.view.waiting, back))
        self.idlers.discard(job.id)


def _is_uncapped(view: View, job: WaitingJob) -> bool:
    team = view.teams[job.team]
    return team.caps == Caps() and team.person_caps == Caps() and not job.array


def _is_within(view: View, job: WaitingJob) -> bool:
    """Return whether a job is within its share, counting claims."""
    shares = Shares(view.teams, view.nodes)
    claimed = {claim.job for claim in view.claims}
    held = [*view.running, *(other for other in view.waiting if other.id in claimed)]
    own = [other for other in held if other.team == job.team]
    for other in own:
        amount = shares.amount(other) if isinstance(other, RunningJob) else amount_of(other.request)
        shares.add(job.team, amount)
    return shares.includes(job.team, amount_of(job.request))


def _could_take_back(view: View, shares: Shares, job: WaitingJob) -> bool:
    """Return whether a job would fit if one job left that may be asked to."""
    room = Room(view.nodes, {node.name: node.total for node in view.nodes if node.alive})
    for other in view.running:
        is_leaving = other.notice is not None and view.now <= other.notice.deadline + RULES.hold_back_s
        if not is_leaving:
            room.take(other.placement)
    for claim in view.claims:
        room.take(claim.placement)
    for other in view.running:
        staying = [one for one in view.running if one.team == other.team and one.notice is None]
        borrowed = other.id in shares.borrowed(other.team, staying)
        if other.team != job.team and other.notice is None and borrowed:
            with_it = room.copy()
            with_it.give(other.placement)
            if with_it.place(job.request) is not None:
                return True
    return False


SWAPPED = {"a": "b", "b": "a"}


def _renamed(view: View) -> View:
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


def _without_text(actions: list[Action]) -> list[Action]:
    return [replace(action, why="") if isinstance(action, Ask) else action for action in effects(actions)]


def _amounts(gpus: int) -> dict[str, float]:
    return {"CPU": 8.0, "GPU": float(gpus)}


def _noticed(view: View) -> set[str]:
    return {job.id for job in view.running if job.notice}


def _latest(actions: list[Action]) -> dict[str, float]:
    kept = [action for action in actions if isinstance(action, Say) and action.latest_start is not None]
    return {action.job: action.latest_start for action in kept if action.latest_start is not None}


def _run(number: int) -> None:
    """Take 10,000 random steps, which the number determines."""
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        seed(number)(Queue),
        settings=settings(
            max_examples=200,
            stateful_step_count=50,
            deadline=None,
            database=None,
            suppress_health_check=checks,
        ),
    )


@pytest.mark.timeout(900)
def test_invariants_hold_over_ten_thousand_steps() -> None:
    _run(0)


@pytest.mark.soak("scheduling")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", range(1, 101))
def test_invariants_hold_over_a_million_steps(number: int) -> None:
    _run(number)


@settings(deadline=None)
@given(
    parts=st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 64)), min_size=1, max_size=20),
    half_life=st.floats(60, 1e6),
    asks=st.lists(st.floats(0, 1e6), max_size=30),
)
def test_decayed_use_is_independent_of_when_it_is_asked(
    parts: list[tuple[float, float]], half_life: float, asks: list[float]
) -> None:
    seldom = often = Decayed(1000.0, 0.0, half_life)
    for seconds, held in parts:
        end = seldom.at + seconds
        for between in sorted(ask for ask in asks if often.at < ask < end):
            often = often.later(between, held)
        seldom, often = seldom.later(end, held), often.later(end, held)
    assert often.value == pytest.approx(seldom.value, rel=1e-9, abs=1e-6)


@settings(deadline=None)
@given(gpus=st.lists(st.sampled_from([0, 0.4, 1, 1.5, 2, 4]), min_size=1, max_size=4), request=REQUESTS)
def test_request_is_placed_exactly_where_it_fits(gpus: list[float], request: Request) -> None:
    total_amounts = {"CPU": 100.0, "GPU": 100.0}
    nodes = [Node(f"n{i}", True, total_amounts, {"CPU": 4.0, "GPU": free}) for i, free in enumerate(gpus)]
    placement = Room(nodes, {node.name: node.free for node in nodes}).place(request)
    assert (placement is not None) == (check(nodes, request.entrypoint, request.workers) is None)
