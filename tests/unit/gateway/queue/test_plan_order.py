"""Order of the jobs by work, and jobs that have waited for a sixth of the time after which they are overdue."""

import pytest
from queues import GRACE, HOUR, NOW, effects, job, left, node, preempted, reserved, runs, started, view

from mlplatform_gateway.queue.planner.plan import plan
from mlplatform_gateway.queue.planner.queue import JobClass, Notice, Team, Usage
from mlplatform_gateway.queue.planner.state import execute

A, B = Team("a", 4, 32), Team("b", 4, 32)
POOR = [Team("a", 0, 0), Team("b", 0, 0)]
SENIOR = NOW - 12 * HOUR


@pytest.mark.parametrize("first", ["short", "small"])
def test_job_that_asks_for_less_work_is_first(first: str) -> None:
    less = {"short": job("short", "a", 2, limit_s=HOUR), "small": job("small", "a", 1, limit_s=2 * HOUR)}[first]
    waiting = [job("more", "a", 2, limit_s=3 * HOUR, sequence=1), less]
    assert started(plan(view([node("n0", 2)], waiting, teams=[A, B]))) == [first]


def test_use_counts_beside_work() -> None:
    """As much use as doubles the work, and a little more, puts a job behind one of twice the work."""
    waiting = [
        job("long", "a", limit_s=2 * HOUR, person="bob"),
        job("short", "a", limit_s=HOUR, person="eve"),
    ]
    usage = Usage(persons={"eve": 401 * HOUR, "bob": 0.0})
    assert started(plan(view([node("n0", 1)], waiting, teams=[A, B]))) == ["short"]
    assert started(plan(view([node("n0", 1)], waiting, teams=[A, B], usage=usage))) == ["long"]


def test_work_orders_jobs_beyond_shares_after_the_class() -> None:
    waiting = [
        job("urgent", "a", limit_s=9 * HOUR, job_class=JobClass.URGENT),
        job("short", "a", limit_s=HOUR),
        job("other", "b", limit_s=2 * HOUR),
    ]
    assert started(plan(view([node("n0", 3)], waiting, teams=POOR))) == ["other", "urgent", "short"]


def test_one_team_starts_in_order_of_arrival_whatever_the_limits() -> None:
    waiting = [job("long", limit_s=9 * HOUR), job("short", limit_s=HOUR)]
    assert started(plan(view([node("n0", 1)], waiting))) == ["long"]


def test_later_jobs_leave_their_teams_share_to_senior_one() -> None:
    big = job("big", "a", 4, since=SENIOR)
    running = [runs(f"a{n}", "a") for n in range(4)] + [runs("b0", "b", {"n0": 4})]
    known = view([node("n0")], [big, job("small", "a", limit_s=HOUR)], running, [A, B])
    actions = plan(known)
    assert sorted(preempted(actions)) == ["a0", "a1", "a2", "a3"]
    assert reserved(actions) == ["big"]
    assert "big (a-person, team a), which came before it and has waited for 12.0 h" in actions[0].why
    for name in preempted(actions):
        known = left(execute(known, effects(plan(known))), name)
    assert started(plan(known)) == ["big"]


def test_nobody_else_leaves_for_senior_job() -> None:
    running = [runs(f"a{n}", "a") for n in range(4)] + [runs("b0", "b", {"n0": 4})]
    big = job("big", "a", 4, since=SENIOR)
    assert effects(plan(view([node("n0")], [big], running, [A, B]))) == []
    early = job("early", "a", 4, since=NOW - 11 * HOUR, sequence=0)
    assert effects(plan(view([node("n0")], [early], running, [A, B]))) == []


def test_borrowers_leave_for_share_though_senior_job_is_promised_room() -> None:
    """Its team's later jobs are beyond the share once the senior one has its room."""
    big = job("big", "a", 4, since=SENIOR)
    later = [runs(f"a{n}", "a") for n in range(4)]
    lent = runs("lent", "a", {"n0": 4}, started=NOW - HOUR, notice=Notice(NOW + GRACE, "big"))
    actions = plan(view([node("n0")], [big, job("mine", "b", 2)], [*later, lent], [A, B]))
    assert reserved(actions) == ["big", "mine"]
    assert set(preempted(actions)) < {one.id for one in later}
