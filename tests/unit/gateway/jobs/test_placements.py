"""Placement of running jobs: as Ray counts them, and what it does not count yet where it is free."""

from typing import Any

import pytest

from mlplatform.capacity.resources import Node, Request, Resources, WorkerGroup
from mlplatform_gateway.queue.placements import Footprint, place
from mlplatform_gateway.queue.planner.queue import Placement

TRAINING = Request(Resources(cpus=1), WorkerGroup(2, cpus=1, gpus=1))
SCRIPT = Request(Resources(cpus=1, gpus=1))

BOTH = {"a": {"CPU": 1, "GPU": 1}, "b": {"CPU": 2, "GPU": 1}}
ALL, ONE_WORKER = {"a": {"CPU": 3, "GPU": 2}}, {"a": {"CPU": 2, "GPU": 1}}


def node(name: str, free_cpus: float, free_gpus: float, alive: bool = True) -> Node:
    return Node(name, alive, {"CPU": 8, "GPU": 2}, {"CPU": free_cpus, "GPU": free_gpus})


def free(nodes: list[Node]) -> dict[str, tuple[float, float]]:
    return {one.name: (one.free["CPU"], one.free["GPU"]) for one in nodes}


def script(**fields: Any) -> Footprint:
    return Footprint(SCRIPT, **{"runs": True, "young": False, **fields})


def training(**fields: Any) -> Footprint:
    return Footprint(TRAINING, **{"runs": True, "young": False, **fields})


def unrequested(held: Placement) -> Footprint:
    return Footprint(Request(Resources()), runs=True, young=False, held=held)


@pytest.mark.parametrize(
    ("nodes", "footprint", "placement", "left"),
    [
        ([node("a", 8, 2), node("b", 7, 1)], script(), {"b": {"CPU": 1, "GPU": 1}}, {"a": (8, 2), "b": (7, 1)}),
        ([node("a", 7, 2)], training(young=True), {"a": {"CPU": 3, "GPU": 2}}, {"a": (5, 0)}),
        ([node("a", 8, 2)], script(young=True), {"a": {"CPU": 1, "GPU": 1}}, {"a": (7, 1)}),
        ([node("a", 8, 2)], script(young=True, runs=False), {"a": {"CPU": 1, "GPU": 1}}, {"a": (7, 1)}),
        ([node("a", 7, 1)], script(young=True), {"a": {"CPU": 1, "GPU": 1}}, {"a": (7, 1)}),
        ([node("a", 7, 2)], training(), {"a": {"CPU": 1}}, {"a": (7, 2)}),
        ([node("a", 2, 0)], script(), {"a": {"CPU": 1, "GPU": 1}}, {"a": (2, 0)}),
        ([node("a", 7, 1), node("b", 6, 1)], unrequested(BOTH), BOTH, {"a": (7, 1), "b": (6, 1)}),
        ([node("a", 5, 0)], training(held=ALL), ALL, {"a": (5, 0)}),
        ([node("a", 5, 0)], training(held=ALL, young=True), ALL, {"a": (5, 0)}),
        ([node("a", 6, 1)], training(held=ONE_WORKER), ONE_WORKER, {"a": (6, 1)}),
        ([node("a", 7, 1, alive=False), node("b", 8, 2)], script(), {}, {"a": (7, 1), "b": (8, 2)}),
    ],
    ids=[
        *("where Ray counts it", "young, with workers still to be taken", "young and not counted", "young and waiting"),
        *("young, and not counted twice", "its entry point after its workers", "nothing that no job requests or holds"),
        *("held without a request", "not placed again", "young, and not placed again", "fewer workers than requested"),
        "on a lost node",
    ],
)
def test_job_is_placed(nodes: list[Node], footprint: Footprint, placement: Placement, left: dict[str, Any]) -> None:
    """Amounts that Ray counts already are not taken again from those that it lists as free."""
    nodes_after, placements = place(nodes, [footprint])
    assert placements == [placement]
    assert free(nodes_after) == left


def test_former_holder_does_not_get_what_another_requests() -> None:
    """A measurement is older than Ray's listing: the first job's GPUs may be the second's by now."""
    _, placements = place([node("a", 7, 1)], [unrequested({"a": {"GPU": 2}}), script()])
    assert placements == [{}, {"a": {"CPU": 1, "GPU": 1}}]
