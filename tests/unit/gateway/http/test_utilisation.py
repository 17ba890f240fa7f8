"""The use of nodes, GPUs and jobs: the whole gateway over SQLite, in front of recorded answers of Ray 2.60."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import Serve
from described import schemas
from listing_head import RECORDED, ListingHead
from started_gateway import StartedGateway

from mlplatform_gateway.jobs.overview import SHOWN

NODE = f"/nodes/{RECORDED['shapes'][0]['node_id']}"


@pytest.fixture
def head() -> ListingHead:
    found = ListingHead(RECORDED, RECORDED["jobs"])
    found.answers[NODE] = {"data": {"detail": RECORDED["details"][0]}}
    return found


@pytest.fixture
def gateway(head: ListingHead, serve: Serve, tmp_path: Path) -> StartedGateway:
    """A gateway with the three jobs that ran during the recording."""
    started = StartedGateway(tmp_path, serve(head))
    for job_id in ("group", "plain", "task"):
        started.add(job_id, entrypoint=f"python {job_id}.py", metadata={"user": "ada"})
    return started


@pytest.fixture
def client(gateway: StartedGateway) -> Iterator[httpx.Client]:
    with gateway.running() as client:
        yield client


def use(client: httpx.Client) -> dict[str, Any]:
    return client.get("/platform/utilisation").raise_for_status().json()


def test_jobs_have_user_use_and_gpus(client: httpx.Client) -> None:
    group, plain, task = use(client)["jobs"]
    assert group.pop("gpus") == [{"node": "ray-worker-0", "index": 0, "amount": 1.0, "percent": 87}]
    assert group == {"id": "group", "user": "ada", "command": "python group.py", "cpus": 0.617, "memory": 496214016}
    assert (plain["cpus"], plain["memory"]) == (0.006, 158617600)
    for job in (plain, task):
        assert job["gpus"] == [{"node": "ray-worker-0", "index": 1, "amount": 0.5, "percent": None}]


def test_one_request_to_ray_serves_several_viewers(client: httpx.Client, head: ListingHead) -> None:
    answers = [use(client) for _ in range(3)]
    assert answers[0]["gpus"] == answers[2]["gpus"] != []
    assert head.requests[NODE] == 1


def test_nodes_are_listed_without_their_agents_answer(client: httpx.Client, head: ListingHead) -> None:
    del head.answers[NODE]
    found = use(client)
    assert [node["name"] for node in found["nodes"]] == ["ray-worker-0"]
    assert [gpu["percent"] for gpu in found["gpus"]] == [None, None]


def test_unavailable_head_is_named(started: StartedGateway) -> None:
    with started.running() as client:
        answer = client.get("/platform/utilisation")
    assert answer.status_code == 503
    assert f"Ray's head at {started.head} does not answer" in answer.text


def test_running_jobs_are_counted_but_cut(gateway: StartedGateway, client: httpx.Client) -> None:
    for number in range(SHOWN):
        gateway.add(f"more-{number}")
    found = use(client)
    assert len(found["jobs"]) == SHOWN
    assert found["running"] == SHOWN + 3


def test_front_page_shows_measured_load(client: httpx.Client) -> None:
    shown = client.get("/platform/overview").json()
    (node,) = shown["nodes"]
    assert [(gpu["percent"], gpu["memory_used"] / 2**30) for gpu in node["gpus"]] == [(87, 60), (None, 20)]
    assert (node["memory_used"], node["memory_total"]) == (2007392256, 25276510208)
    assert shown["loads"]["group"] == {"gpu": 87, "gpu_memory": 60 * 2**30, "cpus": 0.617, "memory": 496214016}
    assert shown["loads"]["plain"] == {"gpu": None, "gpu_memory": None, "cpus": 0.006, "memory": 158617600}
    assert shown["curves"]["group"].keys() == shown["loads"]["group"].keys()


def test_answer_has_the_fields_of_its_description(client: httpx.Client) -> None:
    answer = use(client)
    for part, schema in (
        (answer, "Utilisation"),
        (answer["nodes"][0], "NodeUse"),
        (answer["gpus"][0], "GpuUse"),
        (answer["jobs"][0], "JobUse"),
        (answer["jobs"][0]["gpus"][0], "HeldGpu"),
    ):
        assert part.keys() == schemas()[schema]["properties"].keys()
