"""Use of nodes, GPUs and jobs, read from answers of Ray 2.60.

`ray_utilisation.json` was recorded on a machine without GPUs: Ray's agent got the load of two from a provider that
returned fixed values, and wrote the rest itself. Three jobs ran: an actor in a placement group, a plain script, and a
task; only names were changed and unused fields removed.
"""

import copy
from typing import Any

import pytest
from listing_head import RECORDED

from mlplatform.capacity.resources import Node
from mlplatform_gateway.ray.listings import nodes_in
from mlplatform_gateway.ray.utilisation import GpuUse, JobUse, NodeUse, Utilisation, utilisation_in

MIB = 1 << 20


@pytest.fixture
def recorded() -> dict[str, Any]:
    return copy.deepcopy(RECORDED)


def read(recorded: dict[str, Any]) -> Utilisation:
    nodes = nodes_in(recorded["shapes"], recorded["summary"], now=0)
    return utilisation_in(nodes, recorded["details"], recorded["jobs"])


def test_gpu_load_and_holders_are_read(recorded: dict[str, Any]) -> None:
    model = "NVIDIA H100 80GB HBM3"
    assert read(recorded).gpus == [
        GpuUse("ray-worker-0", 0, model, 87, 61440 * MIB, 81559 * MIB, {"group": 1.0}, {"group": 61440 * MIB}),
        GpuUse("ray-worker-0", 1, model, None, 20480 * MIB, 81559 * MIB, {"plain": 0.5, "task": 0.5}),
    ]


def test_node_memory_and_reserved_cpus_are_read(recorded: dict[str, Any]) -> None:
    assert read(recorded).nodes == [NodeUse("ray-worker-0", 4.0, 2.0, 2007392256, 25276510208)]


def test_processes_are_added_up_per_job(recorded: dict[str, Any]) -> None:
    assert read(recorded).jobs == [
        JobUse("group", 0.617, 158609408 + 190640128 + 146964480),
        JobUse("plain", 0.006, 158617600),
        JobUse("task", 0.002, 85712896 + 146739200),
    ]


def test_resources_held_by_processes_are_added_up_per_job(recorded: dict[str, Any]) -> None:
    """Also those of the actor that runs an entry point; in a placement group, Ray lists each amount twice."""
    found = read(recorded)
    assert found.complete
    assert found.held == {
        "group": {"ray-worker-0": {"GPU": 1.0, "CPU": 1.0}},
        "plain": {"ray-worker-0": {"GPU": 0.5}},
        "task": {"ray-worker-0": {"GPU": 0.5, "CPU": 1.0}},
    }


def test_declared_gpus_without_measurement_are_listed(recorded: dict[str, Any]) -> None:
    recorded["details"][0]["gpus"] = []
    first, second = read(recorded).gpus
    assert first == GpuUse("ray-worker-0", 0, holders={"group": 1.0})
    assert (second.percent, second.memory_total, dict(second.holders)) == (None, None, {"plain": 0.5, "task": 0.5})


def test_node_whose_agent_has_not_reported_is_listed(recorded: dict[str, Any]) -> None:
    recorded["details"] = [{"raylet": {}, "actors": {}, "workers": []}]
    found = read(recorded)
    assert found.nodes == [NodeUse("ray-worker-0", 4.0, 2.0)]
    assert [gpu.holders for gpu in found.gpus] == [{}, {}]
    assert found.jobs == []
    assert not found.complete


def test_node_whose_raylet_has_not_reported_is_incomplete(recorded: dict[str, Any]) -> None:
    """After a restart of the dashboard, a node's agent is heard ten seconds before its raylet."""
    del recorded["details"][0]["raylet"]["storeStats"]
    assert not read(recorded).complete


def test_lost_nodes_and_head_are_left_out(recorded: dict[str, Any]) -> None:
    nodes = [Node("lost", False, {"CPU": 2.0}, {"CPU": 2.0}), Node("ray-head", True, {"memory": 1.0}, {})]
    assert utilisation_in(nodes, recorded["details"], recorded["jobs"]).nodes == []


def test_two_processes_of_a_job_share_a_gpu(recorded: dict[str, Any]) -> None:
    workers = recorded["details"][0]["workers"]
    task = next(worker for worker in workers if worker["cmdline"] == ["ray::t"])
    workers.append(copy.deepcopy(task))
    assert read(recorded).gpus[1].holders == {"plain": 0.5, "task": 1.0}


def test_memory_of_a_shared_gpu_is_added_up_per_job(recorded: dict[str, Any]) -> None:
    """Process ids as the driver lists them; of one that Ray does not know, nobody can tell whose it is."""
    detail = recorded["details"][0]
    task = next(worker for worker in detail["workers"] if worker["cmdline"] == ["ray::t"])
    sizes = {task["pid"]: 4096, 999_999: 8192}
    listed = {str(pid): {"pid": pid, "gpuMemoryUsage": size} for pid, size in sizes.items()}
    detail["gpus"][1]["processesPids"] = listed
    shared = read(recorded).gpus[1]
    assert (shared.holders, shared.memory_of) == ({"plain": 0.5, "task": 0.5}, {"task": 4096 * MIB})
