"""Queues in which an earlier planner starved a job, broke a promise or undid its own action."""

from dataclasses import replace

import pytest
from queues import GRACE, HOUR, NOW, effects, explained, job, node, preempted, promised, runs, started, view

from mlplatform.capacity.resources import Request, Resources
from mlplatform_gateway.queue.planner.plan import plan
from mlplatform_gateway.queue.planner.queue import Caps, JobClass, Notice, Reserve, Rules, Team, View
from mlplatform_gateway.queue.planner.state import execute

A, B = Team("a", 4, 32), Team("b", 4, 32)
POOR = [Team("a", 0, 0), Team("b", 0, 0)]
DEFAULT = [Team("default", 0, 0)]
SENIOR, OVERDUE = NOW - 12 * HOUR, NOW - 73 * HOUR


def lagging(known: View, name: str, **free: float) -> View:
    """Return a view in which Ray reports less as free on a node than running jobs leave."""
    return replace(
        known, nodes=[replace(one, free=one.free | free) if one.name == name else one for one in known.nodes]
    )


def test_senior_job_starts_before_smaller_ones_in_its_free_share() -> None:
    """Otherwise one of these starts, and is preempted by the same plan."""
    waiting = [job("big", "a", 4, since=SENIOR, limit_s=9 * HOUR), job("small", "a", limit_s=HOUR)]
    actions = plan(view([node("n0")], waiting, [runs("b0", "b", {"n0": 4})], [A, B]))
    assert (started(actions), preempted(actions)) == (["big"], [])


@pytest.mark.parametrize("teams", [DEFAULT, [Team("default", 8, 64), Team("b", 0, 0)]])
def test_small_job_leaves_room_to_large_one_while_ray_lags(teams: list[Team]) -> None:
    """The last of its nodes' jobs has left, and Ray does not report that yet."""
    waiting = [job("big", request=8, since=OVERDUE), job("small")]
    known = lagging(view([node("n0")], waiting, teams=teams), "n0", GPU=7)
    actions = plan(known)
    assert started(actions) == []
    assert {reason.rule.value for reason in explained(actions, "big").reasons} == {"ray"}
    assert started(plan(lagging(execute(known, effects(actions)), "n0", GPU=8))) == ["big"]


def test_small_job_starts_where_ray_lags_for_long() -> None:
    """A program outside of jobs holds a GPU: then the large job has no room there."""
    known = lagging(view([node("n0")], [job("big", request=8, since=OVERDUE), job("small")]), "n0", GPU=7)
    known = execute(known, effects(plan(known)))
    later = replace(known, now=NOW + Rules().hold_back_s + 1)
    assert started(plan(later)) == ["small"]
    assert effects(plan(execute(later, effects(plan(later))))) == []


def test_borrowers_leave_where_program_holds_free_node_for_long() -> None:
    """The job's room is by our accounts on n0, and Ray has counted a CPU there as used for longer than a job lags."""
    whole = Request(Resources(cpus=64, gpus=4))
    running = [runs("lent", "b", {"n1": 8})]
    known = lagging(
        view([node("n0", 4), node("n1")], [job("mine", "a", whole)], running, [Team("a", 4, 64), B]), "n0", CPU=63
    )
    known = execute(known, effects(plan(known)))
    assert preempted(plan(known)) == []
    actions = plan(replace(known, now=NOW + Rules().hold_back_s + 1))
    assert preempted(actions) == ["lent"]


def test_room_that_ray_lags_to_free_is_held() -> None:
    teams = [Team("vision", 4, 16), Team("audio", 0, 0)]
    known = view([node("n0", 4)], [job("waits", "vision", 4)], teams=teams)
    lags = replace(known, nodes=[replace(one, free={}) for one in known.nodes])
    assert explained(plan(lags), "waits").latest_start == NOW + Rules().hold_back_s


def test_reservation_on_a_lost_node_moves() -> None:
    mine = job("mine", "a", 4, reserved=Reserve("mine", {"n0": {"GPU": 4}}, NOW))
    running = [runs("lent", "b", {"n1": 8})]
    actions = plan(view([node("n0", alive=False), node("n1")], [mine], running, [A, Team("b", 0, 0)]))
    assert preempted(actions) == ["lent"]
    assert [set(action.placement) for action in actions if isinstance(action, Reserve)] == [{"n1"}]


def test_plan_after_its_execution_is_empty() -> None:
    running = [runs(f"b{n}", "b") for n in range(7)]
    before = view([node("n0")], [job(f"a{n}", "a") for n in range(3)], running, [A, B])
    actions = plan(before)
    assert effects(actions)
    assert effects(plan(execute(before, actions))) == []


def test_plan_killed_between_preemption_and_reservation_continues() -> None:
    before = view([node("n0")], [job("mine", "a")], [runs("big", "b", {"n0": 8})], [A, B])
    preempt, reserve = effects(plan(before))
    assert effects(plan(execute(before, [preempt]))) == [reserve]


def test_job_that_can_never_run_does_not_delay_its_team() -> None:
    """Its work would order all less urgent jobs of its team behind those of other teams."""
    waiting = [
        job("never", "a", 16, job_class=JobClass.URGENT),
        job("short", "a", limit_s=HOUR),
        job("long", "b", limit_s=9 * HOUR),
    ]
    assert started(plan(view([node("n0", 1)], waiting, teams=POOR))) == ["short"]


def test_first_actions_of_plan_lead_to_its_end() -> None:
    waiting = [job("urgent", "a", job_class=JobClass.URGENT), job("short", "a", limit_s=HOUR), job("other", "b")]
    known = view([node("n0", 2)], waiting, teams=POOR)
    whole, first = plan(known), effects(plan(known))[0]
    again = effects(plan(execute(known, [first])))
    assert effects(whole) == [first, *again]


@pytest.mark.parametrize("whose", ["team", "person"])
def test_overdue_job_gets_the_room_beneath_a_cap(whose: str) -> None:
    """Later jobs of its team or person would fill the cap forever."""
    caps = Caps(gpus=4)
    team = Team("a", 0, 0, caps=caps) if whose == "team" else Team("a", 0, 0, person_caps=caps)
    running = [runs("old", "a", {"n0": 1})]
    waiting = [job("big", "a", 4, since=OVERDUE), job("small", "a", since=NOW)]
    actions = plan(view([node("n0")], waiting, running, [team, B]))
    assert started(actions) == []
    assert "big" in explained(actions, "small").reasons[0].text


def test_job_larger_than_its_cap_delays_nobody() -> None:
    team = Team("a", 0, 0, caps=Caps(gpus=4))
    waiting = [job("big", "a", 5, since=OVERDUE), job("small", "a")]
    assert started(plan(view([node("n0")], waiting, teams=[team, B]))) == ["small"]


def test_returned_job_does_not_hide_overdue_one_behind_it() -> None:
    """Jobs are alike but for their arrival: the first has been preempted just now, the second waits for days."""
    running = [runs("late", "b", {"n0": 4}, sequence=9_000_000), runs("mine", "b", {"n0": 4}, sequence=0)]
    waiting = [
        job("returned", "a", 4, sequence=9_500_000, since=NOW),
        job("overdue", "a", 4, sequence=8_000_000, since=OVERDUE),
    ]
    first = replace(waiting[0], sequence=1)
    known = view([node("n0")], [first, waiting[1]], running, [Team("a", 0, 0), Team("b", 4, 32)])
    actions = plan(known)
    assert preempted(actions) == ["late"]
    assert explained(actions, "overdue").latest_start is not None


def test_promise_beyond_share_leaves_protection_of_running_job() -> None:
    """Job `promised` is beyond its team's share, so it does not drive `protected` out of the share."""
    running = [
        runs("leaves", "b", {"n0": 4}, notice=Notice(NOW + GRACE, "promised")),
        runs("protected", "a", {"n1": 2}, sequence=2),
    ]
    old = NOW - 80 * HOUR
    waiting = [
        job("overdue", "c", 2, since=old, sequence=1),
        job("promised", "a", 4, since=old, sequence=3, reserved=Reserve("promised", {"n0": {"GPU": 4}}, NOW + GRACE)),
    ]
    teams = [Team("a", 4, 32), Team("b", 0, 0), Team("c", 0, 0)]
    known = view([node("n0", 4), node("n1", 2)], waiting, running, teams)
    assert promised(known) == {"promised"}
    assert preempted(plan(known)) == []
