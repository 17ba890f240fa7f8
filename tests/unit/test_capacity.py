"""Rejected and waiting requests, on listings of Ray 2.60 (`ray_listings.json`, with changed host names)."""

import json
from pathlib import Path
from typing import Any

import pytest

from mlplatform.capacity.resources import Node, Resources, Shortage, WorkerGroup
from mlplatform.errors import CapacityError
from mlplatform_gateway.queue.planner.feasibility import check
from mlplatform_gateway.ray.listings import holdings_in, host_names, nodes_in, users_of

LISTINGS: dict[str, Any] = json.loads((Path(__file__).parent / "ray_listings.json").read_text())
LOST_AT = 1795238851.427
"""Time at which the worker of listing `lost` was found dead."""


def listed(name: str, now: float = LOST_AT) -> list[Node]:
    return nodes_in(LISTINGS[name]["shapes"], LISTINGS[name]["summary"], now)


def node(name: str, *, alive: bool = True, used: float = 0, label: str = "worker", **total: float) -> Node:
    """A node with a part of each of its resources in use."""
    return Node(name, alive, total, {key: value - used for key, value in total.items()}, {"role": label})


STACK = [node("ray-head", label="head"), node("ray-worker-0", CPU=8, GPU=1), node("ray-worker-1", CPU=8, GPU=1)]


def refusal(nodes: list[Node], *asked: Any) -> str:
    with pytest.raises(CapacityError) as error:
        check(nodes, *asked)
    return str(error.value)


def test_listing_yields_resources_usage_and_labels() -> None:
    head, worker = listed("busy")
    assert (head.name, worker.name) == ("ray-head", "ray-worker-0")
    assert worker.labels["role"] == "worker"
    assert (worker.total["CPU"], worker.total["GPU"]) == (4, 1)
    assert (worker.free["CPU"], worker.free["GPU"]) == (3, 0)
    assert head.free["CPU"] == 1


def test_recently_lost_node_keeps_its_resources() -> None:
    worker = listed("lost", LOST_AT + 599)[1]
    assert (worker.name, worker.alive) == ("ray-worker-0", False)
    assert (worker.total["GPU"], worker.available(now=True)) == (1, {})
    assert [node.name for node in listed("lost", LOST_AT + 601)] == ["ray-head"]


def test_returned_node_counts_once() -> None:
    listing = LISTINGS["lost"]
    lost = listing["shapes"][1]
    times = {"start_time_ms": lost["end_time_ms"] - 5000, "end_time_ms": 0}
    back = {**lost, "node_id": "b" * 56, "state": "ALIVE", **times}
    nodes = nodes_in([*listing["shapes"], back], listing["summary"], LOST_AT)
    assert sorted(node.alive for node in nodes) == [True, True]


def test_returned_node_with_new_address_counts_once() -> None:
    """A restarted head's dashboard has host names of living nodes only; node names do not change."""
    listing = LISTINGS["lost"]
    lost = {**listing["shapes"][1], "node_name": "ray-worker-1"}
    new = {"node_id": "b" * 56, "node_ip": "192.0.2.9", "state": "ALIVE", "start_time_ms": lost["end_time_ms"] + 5000}
    known = [summary for summary in listing["summary"]["summary"] if summary["raylet"]["nodeId"] != lost["node_id"]]
    nodes = nodes_in([lost, {**lost, **new}], {**listing["summary"], "summary": known}, LOST_AT)
    assert [(node.name, node.alive) for node in nodes] == [("ray-worker-1", True)]


def test_resource_holders_include_entry_points_and_actors() -> None:
    assert users_of(["GPU"], LISTINGS["actors"], LISTINGS["jobs"]) == ("j2",)
    assert users_of(["CPU"], LISTINGS["actors"][:1], LISTINGS["jobs"]) == ("j2",)
    assert users_of(["TPU"], LISTINGS["actors"], LISTINGS["jobs"]) == ()


def test_resource_holder_is_named_by_job_id() -> None:
    name = "_ray_internal_job_actor_train-1--2-0a1b2c"
    actor = {"class_name": "JobSupervisor", "name": name, "job_id": "05000000", "required_resources": {"GPU": 1.0}}
    assert users_of(["GPU"], [actor], []) == ("train-1",)
    worker = {"class_name": "A", "name": "", "job_id": "06000000", "required_resources": {"GPU": 1.0}}
    attempt = {"job_id": "06000000", "submission_id": "train-2--1-0a1b2c"}
    assert users_of(["GPU"], [worker], [attempt]) == ("train-2",)


def test_holdings_are_summed_per_job_and_node() -> None:
    group = "0" * 32 + "06000000"
    bundle = {"GPU": 0.5, f"GPU_group_{group[:36]}": 0.5, f"GPU_group_0_{group[:36]}": 0.5, "bundle_group_x": 0.001}
    actors = [
        {"class_name": "A", "name": "", "job_id": "06000000", "node_id": node, "required_resources": held}
        for node, held in (("n0", {"GPU": 1.0, "CPU": 2.0}), ("n0", {"GPU": 0.5}), ("n1", bundle))
    ]
    jobs = [{"job_id": "06000000", "submission_id": "train-2--1-0a1b2c"}]
    first, second = holdings_in(actors, jobs, {"n0": "ray-worker-0", "n1": "ray-worker-1"})
    assert (first.job_id, first.node, first.amounts) == ("train-2", "ray-worker-0", {"GPU": 1.5, "CPU": 2.0})
    assert (second.node, second.amounts["GPU"]) == ("ray-worker-1", 0.5)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (
            (Resources(gpus=4),),
            "The entry point asks for 4 GPUs; no node has more than 1 GPU "
            "(ray-worker-0, ray-worker-1: 8 CPUs and 1 GPU); ask for at most 1 GPU.",
        ),
        (
            (Resources(), WorkerGroup(1, gpus=2)),
            "One worker asks for 1 CPU and 2 GPUs; no node has more than 1 GPU "
            "(ray-worker-0, ray-worker-1: 8 CPUs and 1 GPU); ask for at most 1 GPU.",
        ),
        (
            (Resources(), WorkerGroup(3, cpus=1, gpus=1)),
            "The job asks for 3 workers with 1 CPU and 1 GPU each; all nodes together hold 2 "
            "(ray-worker-0, ray-worker-1: 8 CPUs and 1 GPU); ask for at most 2.",
        ),
        (
            (Resources(gpus=1), WorkerGroup(2, cpus=1, gpus=1)),
            "The job asks for 2 workers with 1 CPU and 1 GPU each beside 1 GPU for the entry point; all nodes together "
            "hold 1 (ray-worker-0, ray-worker-1: 8 CPUs and 1 GPU); ask for at most 1.",
        ),
        (
            (Resources(custom={"TPU": 1}),),
            "The entry point asks for 1 TPU; no node has a TPU (ray-worker-0, ray-worker-1: 8 CPUs, 1 GPU and 0 TPU; "
            "ray-head: 0 CPUs, 0 GPUs and 0 TPU); ask for no TPU.",
        ),
        (
            (Resources(gpus=1.5),),
            "The entry point asks for 1.5 GPUs, and above 1 Ray gives whole ones only; ask for 1 or 2.",
        ),
        ((Resources(cpus=-1),), "The entry point asks for -1 CPUs; ask for 0 or more."),
        (
            (Resources(cpus=1), None, {"role": "trainer"}),
            "The entry point asks for 1 CPU, but Ray has no node with label role=trainer; start a worker.",
        ),
    ],
)
def test_infeasible_request_error_names_feasible_shape(asked: tuple[Any, ...], expected: str) -> None:
    assert refusal(STACK, *asked) == expected


def test_combination_on_no_single_node_has_own_message() -> None:
    nodes = [node("many-cpus", CPU=64), node("one-gpu", CPU=4, GPU=1)]
    assert refusal(nodes, Resources(cpus=8, gpus=1)) == (
        "The entry point asks for 8 CPUs and 1 GPU on one node; no node has all of that at once "
        "(many-cpus: 64 CPUs and 0 GPUs; one-gpu: 4 CPUs and 1 GPU); ask for what one of these has."
    )


def test_memory_is_formatted_in_binary_units() -> None:
    asked = Resources(custom={"memory": 8 << 30})
    assert refusal([node("small", CPU=8, memory=7462343475)], asked) == (
        "The entry point asks for 8 GiB of memory; no node has more than 6.94 GiB of memory "
        "(small: 8 CPUs, 0 GPUs and 6.94 GiB of memory); ask for at most 6.94 GiB of memory."
    )
    assert "has more than 512 MiB of memory" in refusal([node("tiny", CPU=1, memory=512 << 20)], asked)


def test_fractional_gpu_fits_on_one_gpu() -> None:
    """Two workers with 0.6 leave 0.4 on each of two GPUs: 0.8 in total, but a third worker does not fit."""
    nodes = [node("two-gpus", CPU=8, GPU=2)]
    assert check(nodes, Resources(), WorkerGroup(6, cpus=1, gpus=0.3)) is None
    assert "all nodes together hold 2" in refusal(nodes, Resources(), WorkerGroup(3, cpus=1, gpus=0.6))


def test_group_not_fitting_beside_entry_point_is_rejected() -> None:
    message = refusal([node("only", CPU=2)], Resources(cpus=1), WorkerGroup(1, cpus=2))
    assert "all nodes together hold none (only: 2 CPUs and 0 GPUs); ask for less for each" in message


@pytest.mark.parametrize(
    ("entry", "workers"),
    [
        (Resources(), None),
        (Resources(gpus=0.5), WorkerGroup(3, cpus=1, gpus=0.5)),
        (Resources(cpus=8), WorkerGroup(8, cpus=1)),
        # The entry point fits on either node; only on one of them does it leave room for all workers.
        (Resources(cpus=2), WorkerGroup(4, cpus=2, gpus=0)),
        (Resources(cpus=0.3), WorkerGroup(7, cpus=0.1)),
        (Resources(), WorkerGroup(100, cpus=0)),
        (Resources(), WorkerGroup(2, cpus=0, gpus=0.6)),
    ],
)
def test_feasible_request_is_accepted(entry: Resources, workers: WorkerGroup | None) -> None:
    assert check(STACK, entry, workers, {"role": "worker"}) is None


def test_entry_point_placement_maximizes_worker_capacity() -> None:
    nodes = [node("even", CPU=4), node("odd", CPU=5)]
    assert check(nodes, Resources(cpus=1), WorkerGroup(4, cpus=2)) is None
    assert "hold 4" in refusal(nodes, Resources(cpus=1), WorkerGroup(5, cpus=2))


def test_job_waits_for_resources_in_use() -> None:
    nodes = [node("a", CPU=2, GPU=2, used=1), node("b", CPU=2, GPU=2, used=2)]
    assert str(check(nodes, Resources(gpus=2))) == "The job waits for 1 GPU."
    assert check(nodes, Resources(gpus=1)) is None
    wait = check(nodes, Resources(), WorkerGroup(3, cpus=1, gpus=1))
    assert str(wait) == "The job waits for room for 2 of its 3 workers with 1 CPU and 1 GPU each."


def test_job_waits_for_unavailable_node_by_name() -> None:
    nodes = [node("here", CPU=2), node("ray-worker-1", alive=False, CPU=2, GPU=1)]
    assert str(check(nodes, Resources(gpus=1))) == "The job waits for 1 GPU; ray-worker-1 is unavailable."


def test_shortage_names_jobs_holding_resources() -> None:
    assert str(Shortage("1 GPU", ("a", "b"))) == "The job waits for 1 GPU; in use by a, b."


def test_node_without_summary_has_the_name_it_was_started_with() -> None:
    shapes = [
        {"node_id": "known", "node_name": "ray-worker-0", "node_ip": "10.0.0.1"},
        {"node_id": "new", "node_name": "ray-worker-1", "node_ip": "10.0.0.2"},
        {"node_id": "unnamed", "node_name": "10.0.0.3", "node_ip": "10.0.0.3"},
    ]
    summary = {"summary": [{"raylet": {"nodeId": "known"}, "hostname": "laptop"}, {"raylet": {}, "hostname": "gone"}]}
    assert host_names(shapes, summary) == {"known": "laptop", "new": "ray-worker-1"}
