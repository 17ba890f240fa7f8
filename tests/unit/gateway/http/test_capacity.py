"""Capacity checks: the whole gateway over SQLite and a folder, in front of listings of Ray 2.60, and the client."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import Serve
from described import schemas
from listing_head import UNIT, ListingHead
from started_gateway import StartedGateway
from waiting import wait_for

from mlplatform.capacity.resources import Resources, WorkerGroup
from mlplatform.client.jobs import Jobs
from mlplatform.errors import CapacityError, JobError, UnreachableError
from mlplatform.settings.job import Settings

LISTINGS: dict[str, Any] = json.loads((UNIT / "ray_listings.json").read_text())


@pytest.fixture
def head(request: pytest.FixtureRequest) -> ListingHead:
    """A head with one busy GPU."""
    # Behind the gateway, Ray knows jobs by the ids of their attempts.
    jobs = [{**job, "submission_id": f"{job['submission_id']}--1-0a1b2c"} for job in LISTINGS["jobs"]]
    found = ListingHead(LISTINGS["busy"], jobs, LISTINGS["actors"])
    found.down = getattr(request, "param", "up") == "down"
    return found


@pytest.fixture
def client(head: ListingHead, serve: Serve, tmp_path: Path) -> Iterator[httpx.Client]:
    with StartedGateway(tmp_path, serve(head), driver_label="role=worker").running() as client:
        yield client


@pytest.fixture
def jobs(client: httpx.Client, tmp_path: Path) -> Iterator[Jobs]:
    """A client that knows no driver label, as on a laptop without one: the gateway adds its own."""
    with Jobs(Settings.load(ray_address=str(client.base_url), ray_auth_token_path=tmp_path / "ray_token")) as found:
        yield found


def test_capacity_answer_distinguishes_fit_wait_and_infeasible(jobs: Jobs) -> None:
    assert jobs.check_capacity(Resources(cpus=3)) is None
    wait = jobs.check_capacity(Resources(gpus=1))
    assert wait is not None
    assert str(wait) == "The job waits for 1 GPU; in use by j2."
    assert (wait.users, wait.unavailable) == (("j2",), ())
    for entry, workers, sentence in (
        (
            Resources(gpus=2),
            None,
            "The entry point asks for 2 GPUs; no node with label role=worker has more than 1 GPU "
            "(ray-worker-0: 4 CPUs and 1 GPU); ask for at most 1 GPU.",
        ),
        (
            Resources(),
            WorkerGroup(20_000, cpus=1),
            "The job asks for 20000 workers with 1 CPU each; all nodes together hold 6 "
            "(ray-worker-0: 4 CPUs and 1 GPU; ray-head: 2 CPUs and 0 GPUs); ask for at most 6.",
        ),
        (
            Resources(),
            WorkerGroup(1, cpus=0, custom={"TPU": 1}),
            "One worker asks for 1 TPU; no node has a TPU (ray-worker-0: 4 CPUs, 1 GPU and 0 TPU; "
            "ray-head: 2 CPUs, 0 GPUs and 0 TPU); ask for no TPU.",
        ),
        (Resources(cpus=-1), None, "The entry point asks for -1 CPUs; ask for 0 or more."),
    ):
        with pytest.raises(CapacityError) as error:
            jobs.check_capacity(entry, workers)
        assert str(error.value) == sentence


def test_invalid_amount_is_named(jobs: Jobs) -> None:
    for amount in (float("inf"), float("nan")):
        with pytest.raises(JobError, match=f"entrypoint.gpus={amount} is not valid: Input should be a finite number"):
            jobs.check_capacity(Resources(gpus=amount))


def test_stored_nodes_count_while_ray_head_is_down(jobs: Jobs, head: ListingHead) -> None:
    assert jobs.check_capacity(Resources(cpus=3)) is None
    head.down = True

    def waits() -> bool:
        return str(jobs.check_capacity(Resources(gpus=1))).endswith("; ray-head, ray-worker-0 are unavailable.")

    wait_for(waits, "the nodes as unavailable")
    with pytest.raises(CapacityError, match="no node with label role=worker has more than 1 GPU"):
        jobs.check_capacity(Resources(gpus=2))


@pytest.mark.parametrize("head", ["down"], indirect=True)
def test_gateway_without_known_nodes_cannot_answer(jobs: Jobs) -> None:
    with pytest.raises(UnreachableError, match="has not seen a node of Ray yet; try again when Ray has started"):
        jobs.check_capacity(Resources(gpus=1))


def test_shortage_omits_users_not_listed_by_ray(jobs: Jobs, head: ListingHead) -> None:
    del head.answers["/api/v0/actors"]
    assert str(jobs.check_capacity(Resources(gpus=1))) == "The job waits for 1 GPU."


def test_invalid_capacity_request_error_names_field_and_value(client: httpx.Client) -> None:
    for body, status, says in (
        (b"", 400, "JSON"),
        (b"[]", 400, "object"),
        (b'{"entrypoint": {"cpu": 1}}', 400, "entrypoint.cpu=1"),
        (b'{"entrypoint": {"cpus": "1"}}', 400, "entrypoint.cpus='1'"),
        (b'{"entrypoint": {"cpus": true}}', 400, "entrypoint.cpus=True"),
        (b'{"entrypoint": {"gpus": 1e999}}', 400, "entrypoint.gpus=inf"),
        (b'{"entrypoint": {"gpus": %s}}' % (b"9" * 5000), 400, "number"),
        (b'{"entrypoint": {"custom": {"": 1}}}', 400, "entrypoint.custom"),
        (b'{"workers": {"cpus": 1}}', 400, "workers.count"),
        (b'{"workers": {"count": 1000001}}', 400, "workers.count=1000001"),
        (b'{"workers": {"count": 1.5}}', 400, "workers.count=1.5"),
        (b'{"labels": {"role": 1}}', 400, "labels.role=1"),
        (b" " * (65 << 10), 413, "larger than 0.0625 MiB; request fewer kinds of resources."),
    ):
        answer = client.post("/platform/capacity", content=body)
        assert answer.status_code == status, (body[:60], answer.text)
        assert says in answer.text, (body[:60], answer.text)
        assert len(answer.text.splitlines()) == 1
        assert answer.headers["Content-Type"].startswith("text/plain")


def test_capacity_request_schema_matches_parser(client: httpx.Client) -> None:
    schema = schemas()["CapacityRequest"]["properties"]
    group = dict.fromkeys(schemas()["WorkerGroup"]["properties"], 1) | {"gpus": 0, "custom": {"CPU": 1}}
    entry = dict.fromkeys(schemas()["Resources"]["properties"], 1) | {"custom": {"memory": 1}}
    asked = {"entrypoint": entry, "workers": group, "labels": {"role": "worker"}}
    assert schema.keys() == asked.keys()
    answer = client.post("/platform/capacity", json=asked).raise_for_status().json()
    assert answer["shortage"].keys() == schemas()["Shortage"]["properties"].keys()
