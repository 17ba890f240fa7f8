"""Invariants of the planner over random nodes, teams, jobs, losses and kills of what executes its plans.

The machine executes plans as the gateway does: action by action, and a kill may end that between any two. Ray starts
jobs where the planner counts them or moves them, some of those that are asked to leave do not, some are never asked,
some take more than they asked for, and what Ray reports as free is sometimes less or more than what our accounts say.
"""

import math
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from invariants import (
    accounts,
    caught_up,
    could_take_back,
    hold,
    is_senior,
    is_uncapped,
    is_within,
    own_room,
    renamed,
    without_text,
)
from queues import effects, is_beyond_share, left, settled

from mlplatform.capacity.resources import Node, Request, Resources, WorkerGroup
from mlplatform_gateway.queue.planner.feasibility import check
from mlplatform_gateway.queue.planner.plan import plan, queue
from mlplatform_gateway.queue.planner.queue import (
    Action,
    Caps,
    Explain,
    JobClass,
    Placement,
    Preempt,
    Rules,
    RunningJob,
    Start,
    Team,
    Usage,
    View,
    WaitingJob,
)
from mlplatform_gateway.queue.planner.round import Round
from mlplatform_gateway.queue.planner.shares import Shares, total
from mlplatform_gateway.queue.planner.state import State, execute

EPSILON = 1e-6
RULES = Rules(grace_s=100, overdue_s=5000, hold_back_s=50)
NAMES = ("a", "b", "c")
MOST_KILLS = 300
STAYS = 6
"""One in so many jobs is never asked to leave."""
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
        st.sampled_from([Caps(), Caps(), Caps(gpus=5), Caps(cpus=6), Caps(running=3)]),
        st.sampled_from([Caps(), Caps(), Caps(gpus=3), Caps(cpus=4), Caps(running=2)]),
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
        self.idlers: set[str] = set()
        self._planned: tuple[View, list[Action], View, Round] | None = None

    @property
    def planned(self) -> tuple[list[Action], View, Round]:
        """The plan for the view, the view that it leads to, and the planner's last round there."""
        if self._planned is None or self._planned[0] is not self.view:
            actions = plan(self.view)
            after = execute(self.view, effects(actions))
            self._planned = self.view, actions, after, settled(after)
        return self._planned[1:]

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
        group=st.sampled_from(["", "", "sweep"]),
    )
    def submit(
        self, team: int, person: int, job_class: JobClass, request: Request, limit: float | None, group: str
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
            group=group and f"{group}-{name}",
            at_most=2 if group else None,
        )
        self.view = replace(self.view, waiting=(*self.view.waiting, job))

    @rule(seconds=st.sampled_from([1.0, 60.0, 100.0, 151.0, 400.0, 2500.0]))
    def wait(self, seconds: float) -> None:
        """Time passes, most of those that were asked to leave do, some may no longer be asked, and Ray catches up."""
        running = [replace(job, stays=not job.notice and job.sequence % STAYS == 0) for job in self.view.running]
        self.view = caught_up(replace(self.view, now=self.view.now + seconds, running=tuple(running)))
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
        amounts = next(iter(job.placement.values()))
        self._replace_if_it_fits(job, {target.name: amounts})

    @precondition(lambda self: self.view.running)
    @rule(index=st.integers(0, 20), key=st.sampled_from(["CPU", "GPU"]))
    def takes_more_than_it_asked_for(self, index: int, key: str) -> None:
        job = self.view.running[index % len(self.view.running)]
        for name, amounts in list(job.placement.items())[:1]:
            more = {**amounts, key: amounts.get(key, 0) + 1}
            self._replace_if_it_fits(job, {**job.placement, name: more})

    @rule(index=st.integers(0, 3), part=st.sampled_from([0.0, 0.5, 1.0]))
    def ray_reports_other_free_resources(self, index: int, part: float) -> None:
        """Because its accounts lag behind, or a program outside of jobs uses some."""
        nodes = list(self.view.nodes)
        index %= len(nodes)
        free = {key: part * value for key, value in nodes[index].total.items()}
        nodes[index] = replace(nodes[index], free=free)
        self.view = replace(self.view, nodes=tuple(nodes))

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
        self._execute(effects(self.planned[0])[:steps])

    @rule()
    def execute_whole_plan(self) -> None:
        self._execute(effects(self.planned[0]))
        assert effects(self.planned[0]) == [], "a plan for the state that a plan led to is empty"

    @rule()
    def no_backfill_moves_a_hold_later(self) -> None:
        """Starts after room is kept for the first job within its share that does not fit leave it that room."""
        last = Round(State(self.view))
        kept = last.reservation
        if kept and last.actions and self._is_backfill(last.actions[-1], kept.job, kept.overdue):
            again = Round(State(execute(self.view, last.actions))).reservation
            if again and again.job == kept.job:
                assert max(self.view.now, again.time) <= max(self.view.now, kept.time) + EPSILON

    @rule(steps=st.integers(1, 4))
    def killed_in_between_comes_to_the_same_end(self, steps: int) -> None:
        whole, parts = self.planned[1], self.view
        for _ in range(MOST_KILLS):
            if not (rest := effects(plan(parts))):
                break
            parts = execute(parts, rest[:steps])
        assert rest == [], "plans that are killed come to an end"
        assert {job.id for job in parts.running} == {job.id for job in whole.running}
        assert {job.id: job.reserved for job in parts.waiting} == {job.id: job.reserved for job in whole.waiting}
        assert _noticed(parts) == _noticed(whole)

    @rule()
    def swapping_two_names_changes_nothing(self) -> None:
        assert without_text(plan(renamed(self.view))) == without_text(self.planned[0])

    @precondition(lambda self: len(self.view.teams) > 1)
    @rule(weight=st.sampled_from([0.0, 1.0, 100.0]), first=st.booleans())
    def idle_team_without_share_changes_nothing(self, weight: float, first: bool) -> None:
        """With one team only, all is its own, so there the second team changes what is promised."""
        idle = {"idle": Team("idle", 0, 0, weight)}
        teams = {**idle, **self.view.teams} if first else {**self.view.teams, **idle}
        assert plan(replace(self.view, teams=teams)) == self.planned[0]

    # --- what holds ---

    def _execute(self, actions: list[Action]) -> None:
        for action in actions:
            before = self.view
            if isinstance(action, Start):
                self._check_start(action)
                self._check_caps(action)
            elif isinstance(action, Preempt):
                self._check_preempt(action)
                if next(job.idle for job in before.running if job.id == action.job):
                    self.idlers.add(action.job)
            self.view = execute(before, [action])

    def _is_backfill(self, action: Action, kept: WaitingJob, overdue: bool) -> bool:
        """Return whether an action is a start that may not delay a job for which room is kept."""
        if not isinstance(action, Start):
            return False
        team = next(job.team for job in self.view.waiting if job.id == action.job)
        return not action.within_share or len(self.view.teams) == 1 or (overdue and team == kept.team)

    def _replace_if_it_fits(self, job: RunningJob, placement: Placement) -> None:
        """Give a running job another footprint if the nodes have that; Ray's accounts then say the same as ours."""
        moved = replace(job, placement=placement)
        view = replace(self.view, running=tuple(moved if other is job else other for other in self.view.running))
        if min(value for free in accounts(view).free.values() for value in free.values()) >= 0:
            self.view = caught_up(view)

    def _check_start(self, start: Start) -> None:
        job = next(job for job in self.view.waiting if job.id == start.job)
        placed, wanted = total(start.placement), job.request.sums
        assert placed == pytest.approx(wanted), "a job gets what it asks for, whole"
        free = [replace(node, free=node.free if node.alive else {}) for node in self.view.nodes]
        assert check(free, job.request.entrypoint, job.request.workers) is None

    def _check_preempt(self, action: Preempt) -> None:
        view = self.view
        victim = next(job for job in view.running if job.id == action.job)
        assert victim.notice is None, "nobody is preempted twice"
        assert not victim.stays
        assert action.deadline >= view.now + RULES.grace_s
        assert not any(job.id == action.claimant and job.yields_until > view.now for job in view.waiting)
        overtime = victim.ends_by is not None and victim.ends_by <= view.now
        if not overtime and not victim.idle:
            claimant = next(job for job in view.waiting if job.id == action.claimant)
            promises = Round(State(view)).promises
            if is_within(view, promises, claimant):
                assert claimant.team != victim.team
            elif is_senior(view, promises, claimant):
                later = claimant.sequence < victim.sequence
                assert later or claimant.team != victim.team, "two jobs do not drive each other out in turns"
            else:
                assert claimant.since + RULES.overdue_s <= view.now
                assert claimant.sequence < victim.sequence, "two jobs do not drive each other out in turns"
                assert is_beyond_share(view, victim)
            if claimant.team != victim.team:
                first = [job for job in view.waiting if job.id in promises and job.team == victim.team]
                first = [job for job in first if is_senior(view, promises, job)]
                assert is_beyond_share(view, victim, first), "within its share no other team takes anything back"

    def _check_caps(self, start: Start) -> None:
        """Count what is taken beyond requests too."""
        view = self.view
        job = next(job for job in view.waiting if job.id == start.job)
        team, wanted = view.teams[job.team], job.request.sums
        for caps, whose in ((team.caps, {job.team}), (team.person_caps, {job.person})):
            amounts = [total(other.placement) for other in view.running if {other.team, other.person} & whose]
            for index, most in ((0, caps.gpus), (1, caps.cpus)):
                if most is not None and wanted[index]:
                    assert sum(amount[index] for amount in amounts) + wanted[index] <= most + EPSILON

    @invariant()
    def no_node_is_oversubscribed(self) -> None:
        assert all(value >= -EPSILON for free in accounts(self.view).free.values() for value in free.values())

    @invariant()
    def promises_will_be_kept(self) -> None:
        """On each node, what is promised and the jobs that stay hold is at most what it has."""
        _, after, last = self.planned
        stay = [job for job in after.running if not job.notice or after.now > job.notice.deadline + RULES.hold_back_s]
        free = own_room(replace(after, running=stay), last.promises)
        alive = {node.name for node in after.nodes if node.alive}
        for placement in last.promises.values():
            for name, amounts in placement.items():
                assert name in alive
                assert all(free.free[name][key] >= -EPSILON for key in amounts), "promises are void"

    @invariant()
    def caps_hold(self) -> None:
        """For what was requested; what is taken beyond that only keeps others of the team from starting."""
        for team in self.view.teams.values():
            jobs = [job for job in self.view.running if job.team == team.name]
            for caps, held in (
                (team.caps, jobs),
                *((team.person_caps, [job for job in jobs if job.person == f"{team.name}-{n}"]) for n in (0, 1)),
            ):
                assert caps.running is None or len(held) <= caps.running
                for index, most in ((0, caps.gpus), (1, caps.cpus)):
                    assert most is None or sum(job.request.sums[index] for job in held) <= most + EPSILON
            for person in {job.person for job in jobs}:
                assert sum(1 for job in jobs if job.group and job.person == person) <= 2

    @invariant()
    def every_waiting_job_is_explained(self) -> None:
        waiting = {job.id for job in self.planned[1].waiting}
        says = queue(self.view)
        assert sorted(say.job for say in says) == sorted(waiting)
        assert all(say.reasons and all(reason.text.endswith(".") for reason in say.reasons) for say in says)

    @invariant()
    def what_is_owed_comes_within_grace(self) -> None:
        """A job within its share is promised room by a near time if one borrower may be asked and makes it fit.

        Nobody is asked to leave for what only Ray counts as used, or to overtake an overdue job of the same team.
        """
        actions, after, last = self.planned
        held = {**last.promises, **last.lagging}
        shares = Shares(after.teams, after.nodes)
        for say in actions:
            if isinstance(say, Explain) and say.job in last.promises:
                assert say.latest_start is not None
                assert say.latest_start <= after.now + RULES.grace_s + RULES.hold_back_s
        if not shares.alone:
            for job in after.waiting:
                waits = job.id not in held and job.yields_until <= after.now
                if waits and is_uncapped(after, job) and is_within(after, held, job):
                    fits = own_room(after, held).place(job.request)
                    assert fits or not could_take_back(after, held, shares, job), job

    @invariant()
    def room_is_kept_for_what_is_owed(self) -> None:
        """Some job within its share that does not fit has a hold, if one of them will fit at a known time."""
        _, after, last = self.planned
        held = {**last.promises, **last.lagging}
        owed = [job for job in after.waiting if job.id not in held and job.yields_until <= after.now]
        owed = [job for job in owed if is_uncapped(after, job) and is_within(after, held, job)]
        if last.reservation is None:
            assert all(hold(after, held, job) == math.inf for job in owed)

    def _leave(self, job: RunningJob, again: bool) -> None:
        self.view = left(self.view, job.id)
        if again:
            limit = None if job.ends_by is None else job.ends_by - job.started
            shape = (job.id, job.sequence, job.team, job.person, job.job_class, job.request, self.view.now, limit)
            yields_until = self.view.now + IDLE_S if job.id in self.idlers else 0
            back = WaitingJob(*shape, job.group, 2 if job.group else None, yields_until)
            self.view = replace(self.view, waiting=(*self.view.waiting, back))
        self.idlers.discard(job.id)


def _amounts(gpus: int) -> dict[str, float]:
    return {"CPU": 8.0, "GPU": float(gpus)}


def _noticed(view: View) -> set[str]:
    return {job.id for job in view.running if job.notice}
