"""Jobs of a team that are beyond its share."""

from __future__ import annotations

from dataclasses import replace

import pytest
from queues import NOW, effects, job, left, node, preempted, promised, reserved, runs, started, view, workers

from mlplatform.capacity.resources import Request, Resources
from mlplatform_gateway.queue.planner.plan import plan
from mlplatform_gateway.queue.planner.queue import Team
from mlplatform_gateway.queue.planner.shares import Shares
from mlplatform_gateway.queue.planner.state import execute

HOUR = 3600.0
VISION, AUDIO = Team("vision", 2, 0), Team("audio", 2, 0)
ONE_GPU = Request(Resources(gpus=1))


@pytest.mark.parametrize(
    ("taken", "borrowed"), [(1, set()), (2, {"old"})], ids=["as requested", "one more than requested"]
)
def test_unrequested_gpus_are_at_the_expense_of_their_own_job(taken: int, borrowed: set[str]) -> None:
    old = runs("old", "vision", {"n0": taken}, request=ONE_GPU, started=NOW - 2 * HOUR)
    young = runs("young", "vision", {"n0": 1}, started=NOW - HOUR)
    shares = Shares({"vision": VISION, "audio": AUDIO}, [node("n0", 4)])
    assert shares.borrowed("vision", [old, young]) == borrowed


def test_job_with_unrequested_gpus_leaves_before_its_teammate() -> None:
    old = runs("old", "vision", {"n0": 3}, request=ONE_GPU, started=NOW - 2 * HOUR)
    young = runs("young", "vision", {"n0": 1}, started=NOW - HOUR)
    actions = plan(view([node("n0", 4)], [job("owed", "audio")], [old, young], [VISION, AUDIO]))
    assert preempted(actions) == ["old"]


def test_nobody_leaves_for_room_that_ray_lags_to_free() -> None:
    teams = [Team("vision", 5, 20), Team("audio", 0, 0)]
    running = [runs("one", "vision", {"n0": 1}), runs("half", "vision", {"n0": 0.5}, idle=True)]
    waiting = [job("large", "audio", workers(3)), job("small", "vision", 0.5)]
    known = view([node("n0", 4)], waiting, running, teams)
    lags = replace(known, nodes=[replace(one, free={}) for one in known.nodes])
    assert preempted(plan(lags)) == []


def test_room_promised_to_overdue_jobs_goes_to_jobs_within_share() -> None:
    nodes, names = [node(f"n{number}", 1) for number in range(60)], range(60)
    overdue = [job(f"late{number}", "audio", workers(1), since=NOW - 100 * HOUR) for number in names]
    borrowers = [runs(f"r{number}", "audio", {f"n{number}": 1}) for number in names]
    teams = [Team("vision", 60, 4000), Team("audio", 0, 0)]
    before = view(nodes, overdue, borrowers, teams)
    after = execute(before, effects(plan(before)))
    assert len(promised(after)) == len(overdue)
    owed = [job(f"owed{number}", "vision", workers(1)) for number in names]
    after = replace(left(after, "r0"), waiting=(*after.waiting, *owed))
    actions = plan(after)
    assert {*started(actions), *reserved(actions)} >= {one.id for one in owed}
