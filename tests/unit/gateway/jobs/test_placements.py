"""Placement of running jobs: as Ray counts them, and what it does not count yet where it is free."""

import pytest

from mlplatform.capacity.resources import Node, Request, Resources, WorkerGroup
from mlplatform_gateway.queue.placements import Footprint, place

TRAINING = Request(Resources(cpus=1), WorkerGroup(2, cpus=1, gpus=1))
SCRIPT = Request(Resources(cpus=1, gpus=1))


def node(name: str, free_cpus: float, free_gpus: float, alive: bool = True) -> Node:
    return Node(name, alive, {"CPU": 8, "GPU": 2}, {"CPU": free_cpus, "GPU": free_gpus})


def free(nodes: list[Node]) -> dict[str, tuple[float, float]]:
    return {one.name: (one.free["CPU"], one.free["GPU"]) for one in nodes}


def test_running_job_is_where_ray_counts_it() -> None:
    nodes = [node("a", 8, 2), node("b", 7, 1)]
    left, (placement,) = place(nodes, [Footprint(SCRIPT, runs=True, young=False)])
    assert placement == {"b": {"CPU": 1, "GPU": 1}}
    assert free(left) == free(nodes)


def test_workers_of_young_job_are_still_to_be_taken() -> None:
    left, (placement,) = place([node("a", 7, 2)], [Footprint(TRAINING, runs=True, young=True)])
    assert placement == {"a": {"CPU": 3, "GPU": 2}}
    assert free(left) == {"a": (5, 0)}


@pytest.mark.parametrize("runs", [True, False])
def test_young_uncounted_job_takes_what_is_free(runs: bool) -> None:
    left, (placement,) = place([node("a", 8, 2)], [Footprint(SCRIPT, runs=runs, young=True)])
    assert placement == {"a": {"CPU": 1, "GPU": 1}}
    assert free(left) == {"a": (7, 1)}


def test_young_job_is_not_counted_twice() -> None:
    left, _ = place([node("a", 7, 1)], [Footprint(SCRIPT, runs=True, young=True)])
    assert free(left) == {"a": (7, 1)}


def test_job_holds_its_entry_point_after_its_workers() -> None:
    _, (placement,) = place([node("a", 7, 2)], [Footprint(TRAINING, runs=True, young=False)])
    assert placement == {"a": {"CPU": 1}}


def test_what_no_job_requests_or_holds_is_in_no_placement() -> None:
    left, (placement,) = place([node("a", 2, 0)], [Footprint(SCRIPT, runs=True, young=False)])
    assert placement == {"a": {"CPU": 1, "GPU": 1}}
    assert free(left) == {"a": (2, 0)}


def test_held_resources_are_placed_without_request() -> None:
    held = {"a": {"CPU": 1, "GPU": 1}, "b": {"CPU": 2, "GPU": 1}}
    nodes = [node("a", 7, 1), node("b", 6, 1)]
    left, (placement,) = place(nodes, [Footprint(Request(Resources()), runs=True, young=False, held=held)])
    assert placement == held
    assert free(left) == free(nodes)


@pytest.mark.parametrize("young", [True, False])
def test_requested_resources_are_not_placed_again(young: bool) -> None:
    held = {"a": {"CPU": 3, "GPU": 2}}
    _, (placement,) = place([node("a", 5, 0)], [Footprint(TRAINING, runs=True, young=young, held=held)])
    assert placement == held


def test_fewer_workers_than_requested_are_placed() -> None:
    held = {"a": {"CPU": 2, "GPU": 1}}
    _, (placement,) = place([node("a", 6, 1)], [Footprint(TRAINING, runs=True, young=False, held=held)])
    assert placement == held


def test_former_holder_does_not_get_what_another_requests() -> None:
    """A measurement is older than Ray's listing: the first job's GPUs may be the second's by now."""
    held = {"a": {"GPU": 2}}
    footprints = [
        Footprint(Request(Resources()), runs=True, young=False, held=held),
        Footprint(SCRIPT, runs=True, young=False),
    ]
    _, placements = place([node("a", 7, 1)], footprints)
    assert placements == [{}, {"a": {"CPU": 1, "GPU": 1}}]


def test_job_on_lost_node_holds_nothing() -> None:
    nodes = [node("a", 7, 1, alive=False), node("b", 8, 2)]
    left, (placement,) = place(nodes, [Footprint(SCRIPT, runs=True, young=False)])
    assert placement == {}
    assert free(left) == free(nodes)
