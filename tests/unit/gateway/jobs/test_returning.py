"""Requests of jobs that were asked to leave, and the CPUs of teams that have a share of GPUs alone."""

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from mlplatform.capacity.resources import Node, Request, Resources, WorkerGroup
from mlplatform_gateway.jobs.schema import AttemptRow, JobRow
from mlplatform_gateway.jobs.states import Outcome
from mlplatform_gateway.jobs.store import now
from mlplatform_gateway.queue.planner.queue import Caps, Team
from mlplatform_gateway.queue.queueing import with_cpus
from mlplatform_gateway.queue.returning import Returning, with_surplus

ONE_CPU = Request(Resources(cpus=1))
TRAINING = Request(Resources(cpus=1), WorkerGroup(2, 1.0, 1.0))


@pytest.mark.parametrize(
    ("request_", "held", "workers"),
    [
        (ONE_CPU, (2.0, 5.0), WorkerGroup(2, 1.0, 1.0)),
        (ONE_CPU, (2.0, 1.5), WorkerGroup(2, 0.25, 1.0)),
        (ONE_CPU, (0.5, 2.0), WorkerGroup(1, 1.0, 0.5)),
        (ONE_CPU, (1.5, 1.0), WorkerGroup(1, 0.0, 1.0)),
        (ONE_CPU, (1.0, 13.0), WorkerGroup(1, 1.0, 1.0)),
        (ONE_CPU, (0.0, 4.0), WorkerGroup(3, 1.0, 0.0)),
        (ONE_CPU, (0.0, 1.5), None),
        (ONE_CPU, (0.0, 1.0), None),
        (TRAINING, (3.0, 4.0), WorkerGroup(3, 1.0, 1.0)),
        (TRAINING, (2.0, 9.0), WorkerGroup(2, 1.0, 1.0)),
    ],
)
def test_surplus_becomes_workers_that_ray_can_grant(
    request_: Request, held: tuple[float, float], workers: WorkerGroup | None
) -> None:
    assert with_surplus(request_, held).workers == workers


def node(name: str, gpus: float, cpus: float) -> Node:
    amounts = {"GPU": gpus, "CPU": cpus}
    return Node(name, True, amounts, amounts)


@pytest.mark.parametrize(
    ("nodes", "team", "waits_for"),
    [
        ([node("a", 2, 8)], Team("vision", 0, 0), 2.0),
        ([node("a", 1, 8)], Team("vision", 0, 0), 0.0),
        ([node("a", 2, 8)], Team("vision", 0, 0, caps=Caps(gpus=1)), 0.0),
        ([node("a", 2, 8)], Team("vision", 0, 0, person_caps=Caps(cpus=2)), 0.0),
    ],
    ids=["all it held", "more than the nodes have", "more than the team may", "more than the person may"],
)
def test_job_does_not_wait_for_what_it_can_never_get(nodes: list[Node], team: Team, waits_for: float) -> None:
    attempt = AttemptRow(number=1, ended=now(), outcome=Outcome.PREEMPTED)
    row = JobRow(sequence=7, attempts=[attempt])
    returning = Returning(cast("Any", History()))
    asyncio.run(returning.read([row]))
    assert returning.request(row, ONE_CPU, nodes, team).sums[0] == waits_for


class History:
    """A ledger in which every attempt has held two GPUs and three CPUs."""

    async def most_held(self, *_: int) -> tuple[float, float]:
        return 2.0, 3.0


def test_share_of_gpus_alone_includes_the_cpus_beside_them() -> None:
    nodes = [node("a", 2, 8), node("b", 2, 8), replace(node("c", 2, 8), alive=False)]
    teams = {"audio": Team("audio", 0, 4), "vision": Team("vision", 2, 0), "others": Team("others", 0, 0)}
    assert with_cpus(teams, nodes) == {**teams, "vision": Team("vision", 2, 6)}
    assert with_cpus(teams, [node("d", 0, 8)]) == teams
