"""The gateway's planner in the simulator: the subset of the comparison that CI runs."""

import pytest
from engine import Result, simulate
from measures import percentile
from planning_time import full_view
from policies import Ours
from workload import SEEDS, generated

from mlplatform_gateway.queue.planner.queue import Rules, Start


def simulated(seed: int, rules: Rules) -> Result:
    return simulate(generated(seed=seed, count=300, nodes=2), Ours(), rules)


def longest_but_one_percent(result: Result) -> float:
    waits = [outcome.first_wait_s for outcome in result.outcomes if outcome.entitled]
    assert len(waits) > 50
    return percentile(waits, 99)


@pytest.mark.parametrize("seed", SEEDS)
def test_planner_ends_all_jobs_and_keeps_its_promise(seed: int) -> None:
    rules = Rules()
    result = simulated(seed, rules)
    ended = [outcome.job.id for outcome in result.outcomes if outcome.ended and not outcome.reached_limit]
    assert ended == [job.id for job in result.workload.jobs]
    assert longest_but_one_percent(result) <= rules.grace_s


def test_planner_starts_nothing_on_full_cluster() -> None:
    view = full_view(generated(seed=1, count=300, nodes=2), waiting=200)
    assert not [action for action in Ours().decide(view) if isinstance(action, Start)]
