"""A program that searches with a token for a few GPU hours, and the waits of other teams."""

import math
from dataclasses import replace

import pytest
from engine import Simulation
from measures import percentile
from policies import Ours
from workload import HOUR, Job, Workload, generated

from mlplatform_gateway.queue.planner.queue import Rules

GPU_HOURS, TRIAL_S, AT_ONCE = 10, HOUR / 3, 8


def with_agent(workload: Workload) -> Workload:
    """Add trials of one GPU to the first team, some at once, until they have used the hours of a token."""
    begun = workload.jobs[len(workload.jobs) // 3].arrived
    trials = [
        Job(f"agent-{number:02}", "team-0", "agent", begun + number // AT_ONCE * TRIAL_S, TRIAL_S, HOUR, 1)
        for number in range(math.ceil(GPU_HOURS * HOUR / TRIAL_S))
    ]
    return replace(workload, jobs=tuple(sorted([*workload.jobs, *trials], key=lambda job: job.arrived)))


def wait_of_others(workload: Workload) -> float:
    """Return the 99th percentile of all waits of the teams without the agent, in seconds."""
    outcomes = Simulation(workload, Ours(), Rules()).run().outcomes
    return percentile((outcome.waited_s for outcome in outcomes if outcome.job.team != "team-0"), 99)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_search_of_agent_hardly_prolongs_waits_of_others() -> None:
    workloads = [generated(seed, count=1000) for seed in range(1, 7)]
    ratios = [wait_of_others(with_agent(workload)) / wait_of_others(workload) for workload in workloads]
    assert math.prod(ratios) ** (1 / len(ratios)) <= 1.02, ratios
