"""The planner and teams whose budgets are used up: their jobs run on what all others leave over."""

import pytest
from queues import HOUR, NOW, explained, job, node, preempted, rules, runs, started, view

from mlplatform_gateway.queue.planner.plan import plan
from mlplatform_gateway.queue.planner.queue import Start, Team

SENTENCE = "Team a has used 12.0 of its 10 GPU hours."
A, B, C = Team("a", 4, 32), Team("b", 4, 32), Team("c", 0, 0)
SPENT = Team("a", 0, 0, 0, spent=SENTENCE)
OVERDUE = NOW - 72 * HOUR


@pytest.mark.parametrize("limit_s", [None, HOUR])
def test_job_comes_after_borrowers_of_other_teams(limit_s: float | None) -> None:
    waiting = [job("mine", "a", 8, limit_s=limit_s), job("theirs", "b", 8, limit_s=10 * HOUR)]
    actions = plan(view([node("n0")], waiting, teams=[SPENT, B]))
    assert started(actions) == ["theirs"]
    assert rules(actions, "mine") == {"capacity", "budget"}
    assert SENTENCE in [reason.text for reason in explained(actions, "mine").reasons]


@pytest.mark.parametrize("teams", [[SPENT], [SPENT, B]])
def test_job_starts_where_resources_are_idle(teams: list[Team]) -> None:
    (start,) = plan(view([node("n0")], [job("mine", "a", 8)], teams=teams))
    assert isinstance(start, Start)
    assert start.within_share is (len(teams) == 1)


@pytest.mark.parametrize(("team", "victims"), [(Team("a", 0, 0), ["r"]), (SPENT, [])])
def test_no_job_leaves_for_an_overdue_one(team: Team, victims: list[str]) -> None:
    waiting = [job("mine", "a", 4, since=OVERDUE, sequence=1)]
    actions = plan(view([node("n0")], waiting, [runs("r", "b", {"n0": 8}, sequence=2)], [team, B]))
    assert preempted(actions) == victims


@pytest.mark.parametrize(("team", "victim"), [(A, "borrower"), (SPENT, "mine")])
def test_running_job_is_a_borrower_once_the_budget_is_used(team: Team, victim: str) -> None:
    running = [runs("borrower", "c", {"n0": 4}), runs("mine", "a", {"n0": 4}, started=NOW - HOUR)]
    actions = plan(view([node("n0")], [job("owed", "b", 4)], running, [team, B, C]))
    assert preempted(actions) == [victim]
