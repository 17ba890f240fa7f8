"""Admission of jobs: feasible ones, on nodes selected by labels, and within the upper limits of waiting jobs."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from stored import begin, do, submitted

from mlplatform.capacity.resources import Node, Request, Resources, Shortage
from mlplatform.errors import CapacityError
from mlplatform_gateway.audit.store import PLATFORM
from mlplatform_gateway.errors import QueueFullError
from mlplatform_gateway.jobs.admission import Admission
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.jobs.services import Services
from mlplatform_gateway.jobs.store import JobStore
from mlplatform_gateway.jobs.submission import request_of
from mlplatform_gateway.people.store import People
from mlplatform_gateway.queue.planner.room import Room

WORKER = {"role": "worker"}


def node(name: str = "a", *, alive: bool = True, labels: dict[str, str] = WORKER, **total: float) -> Node:
    return Node(name, alive, total, total, labels)


def job(metadata: dict[str, str] | None = None, **entry: Any) -> Request:
    fields = {f"entrypoint_{name}": value for name, value in entry.items()}
    return request_of(submitted(metadata=metadata or {}, **fields))


def shortage(nodes: Sequence[Node], asked: Request) -> Shortage | None:
    async def known() -> Sequence[Node]:
        return nodes

    unused: Any = None
    services: Any = SimpleNamespace(
        store=SimpleNamespace(engine=None), cluster=SimpleNamespace(nodes=known), driver_labels=WORKER
    )
    return asyncio.run(Admission(services, unused).shortage(asked))


def accepted(nodes: Sequence[Node], asked: Request, at_most: int = 100) -> int:
    """Place equal jobs one after another and return how many fit; the check agrees with the planner's placement."""
    room = Room(nodes, {node.name: node.free for node in nodes if node.alive})
    labeled = replace(asked, labels={**asked.labels, **WORKER})
    for number in range(at_most):
        left = [replace(node, free=room.free[node.name]) for node in nodes]
        placement = room.place(labeled)
        assert (placement is None) == (shortage(left, asked) is not None)
        if placement is None:
            return number
        room.take(placement)
    return at_most


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ("b", [True, False, False]),
        ("!b", [False, True, True]),
        ("in(a, b)", [True, False, False]),
        ("in(b,c)", [True, True, False]),
        ("in(c)", [False, True, False]),
        ("!in(a, b)", [False, True, True]),
        ("!in(b, c)", [False, False, True]),
        ("", [False, False, False]),
    ],
)
def test_label_selectors_match_rays_semantics(selector: str, selected: list[bool]) -> None:
    nodes = [node(labels={"zone": "b"}), node(labels={"zone": "c"}), node(labels={})]
    assert [one.has({"zone": selector}) for one in nodes] == selected


def test_all_labels_must_match() -> None:
    assert node(labels={"zone": "b", "role": "worker"}).has({"zone": "b", "role": "!head"})
    assert not node(labels={"zone": "b", "role": "head"}).has({"zone": "b", "role": "!head"})
    assert node(labels={}).has({})


def test_entry_points_are_confined_to_labeled_nodes() -> None:
    nodes = [node("head", labels={"role": "head"}, CPU=8), node(CPU=1)]
    for labels in ({}, {"label_selector": {"role": "head"}}):
        with pytest.raises(CapacityError):
            shortage(nodes, job(num_cpus=2, **labels))
    assert accepted(nodes, job(num_cpus=1)) == 1


def test_entry_point_uses_selected_nodes() -> None:
    nodes = [node("a", labels={**WORKER, "zone": "a"}, CPU=4), node("b", labels={**WORKER, "zone": "b"}, CPU=1)]
    assert accepted(nodes, job(num_cpus=1, label_selector={"zone": "!a"})) == 1
    assert accepted(nodes, job(num_cpus=1)) == 5


@pytest.mark.parametrize(
    ("asked", "count"),
    [
        (job(num_cpus=2), 4),
        (job(num_gpus=1), 2),
        (job(num_gpus=0.5), 4),
        (job(num_cpus=0.1), 80),
        (job(memory=3 << 30), 4),
        (job(resources={"special": 1}), 1),
        (job(num_cpus=3, memory=1 << 30), 2),
        (job({"workers": "2"}, num_cpus=1), 2),
        (job({"workers": "2", "worker_cpus": "0", "worker_gpus": "1"}), 1),
        (job(), 100),
    ],
    ids=[
        *("cpus", "gpus", "half gpus", "tenths of a cpu", "memory", "custom", "cpus and memory"),
        *("workers beside an entry point", "workers with gpus", "nothing"),
    ],
)
def test_reserved_resources_are_not_allocated_twice(asked: Request, count: int) -> None:
    nodes = [node("a", CPU=4, GPU=1, memory=8 << 30), node("b", CPU=4, GPU=1, memory=8 << 30, special=1)]
    assert accepted(nodes, asked) == count
    assert nodes[0].free == nodes[0].total, "the nodes that were given were changed"


def test_workers_without_resources_use_no_capacity() -> None:
    assert accepted([node(CPU=1)], job({"workers": "10000", "worker_cpus": "0"}), at_most=2) == 2


def test_job_waits_for_what_another_holds() -> None:
    nodes = [replace(node(CPU=4, GPU=1), free={"CPU": 2, "GPU": 0})]
    assert str(shortage(nodes, job(num_gpus=1))) == "The job waits for 1 GPU."
    assert shortage(nodes, job(num_cpus=2)) is None
    assert shortage(nodes, job(num_cpus=3)) is not None


def test_lost_node_makes_jobs_wait_but_accepts_none() -> None:
    nodes = [node("lost", alive=False, CPU=4), node("b", CPU=1)]
    assert "lost is unavailable" in str(shortage(nodes, job(num_cpus=4)))
    assert accepted(nodes, job(num_cpus=1)) == 1


@pytest.mark.parametrize(
    "entry",
    [{"memory": 9 << 30}, {"resources": {"special": 2}}, {"resources": {"unheard-of": 1}}, {"num_cpus": 5}],
    ids=str,
)
def test_infeasible_request_is_rejected(entry: dict[str, Any]) -> None:
    with pytest.raises(CapacityError):
        shortage([node(CPU=4, memory=8 << 30, special=1)], job(**entry))


@pytest.mark.parametrize("asked", [Resources(cpus=1e-320), Resources(custom={"special": 0.00001})], ids=str)
def test_amount_that_ray_does_not_count_is_rejected(asked: Resources) -> None:
    with pytest.raises(CapacityError, match=r"Ray counts in steps of 0\.0001"):
        shortage([node(CPU=4, special=1)], Request(asked))


# --- Upper limits of waiting jobs ---


def of(job_id: str, person: str | None = "alice", team: str | None = "vision") -> JobRow:
    row = submitted(submission_id=job_id)
    row.person, row.team = person, team
    return row


def limit(store: JobStore, **caps: Any) -> Admission:
    """The check, with one waiting job of alice, and limits of team vision."""
    do(People(store.engine).add_team("vision", {"caps": caps}, PLATFORM))
    do(store.add(of("first")))
    unused: Any = None
    return Admission(Services(store, *[unused] * 4), unused)


def test_person_at_the_limit_is_named(store: JobStore) -> None:
    check = limit(store, person={"waiting": 1})
    do(check.check_limits(of("second", "bob")))
    with pytest.raises(QueueFullError, match=r"^alice has 1 waiting jobs, of at most 1 in team vision; submit"):
        do(check.check_limits(of("second")))


def test_limit_of_team_counts_all_of_its_people(store: JobStore) -> None:
    check = limit(store, team={"waiting": 1})
    with pytest.raises(QueueFullError, match=r"^Team vision has 1 waiting jobs"):
        do(check.check_limits(of("second", "bob")))


def test_started_job_does_not_count(store: JobStore) -> None:
    check = limit(store, person={"waiting": 1}, team={"waiting": 1})
    begin(store, "first")
    do(check.check_limits(of("second")))


@pytest.mark.parametrize("caps", [{}, {"team": {"waiting": None}}, {"person": {"running": 0}}])
def test_nothing_is_limited_without_a_number(store: JobStore, caps: dict[str, Any]) -> None:
    do(limit(store, **caps).check_limits(of("second")))


def test_shared_token_has_no_limit(store: JobStore) -> None:
    do(limit(store, team={"waiting": 0}).check_limits(of("second", None, None)))
