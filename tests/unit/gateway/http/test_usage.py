"""Reports of the ledger over HTTP: the window, the groups, and requests that are rejected."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from described import schemas
from ray_head import BOUND_S
from started_gateway import StartedGateway

from mlplatform_gateway.jobs.states import Outcome
from mlplatform_gateway.usage import api as http_usage

YEAR = 365 * 86400


@pytest.fixture
def client(started: StartedGateway) -> Iterator[httpx.Client]:
    started.add("trains", metadata={"user": "ada", "workers": "2", "worker_gpus": "1"})
    started.end(Outcome.LOST, "mine")
    with started.running() as client:
        yield client


def usage(client: httpx.Client, **window: Any) -> dict[str, Any]:
    answer = client.get("/platform/usage", params=window)
    assert answer.status_code == 200, answer.text
    return answer.json()


def entry(client: httpx.Client, **window: Any) -> dict[str, Any]:
    """The entry of job `trains`, once it has counted time; the window ends with a whole second."""
    deadline = time.monotonic() + BOUND_S
    while time.monotonic() < deadline:
        for found in usage(client, **window)["entries"]:
            if found["cpu_seconds"]:
                return dict(found)
    raise AssertionError("no time was counted")


def test_running_job_counts_until_now(client: httpx.Client) -> None:
    found = entry(client, by="job")
    assert (found["job"], found["person"], found["team"]) == ("trains", "ada", None)
    assert (found["jobs"], found["running"]) == (1, 1)
    assert 0 < found["gpu_seconds"] == found["cpu_seconds"] < 2 * BOUND_S
    assert found["lost_gpu_seconds"] == 0


@pytest.mark.parametrize(("by", "names"), [("person", {"person"}), ("team", {"team"})])
def test_entries_match_their_description(client: httpx.Client, by: str, names: set[str]) -> None:
    schema = schemas()["Use"]
    assert entry(client, by="job").keys() == schema["properties"].keys()
    assert entry(client, by=by).keys() == {*schema["required"], *names}


def test_window_is_named_and_ends_now_at_the_latest(client: httpx.Client) -> None:
    now = int(time.time())
    answer = usage(client)
    assert answer["since"] == 0
    assert now <= answer["until"] <= now + BOUND_S
    assert usage(client, until=now + YEAR)["until"] <= now + BOUND_S
    past = usage(client, since=now - 2 * YEAR, until=now - YEAR)
    assert past == {"since": now - 2 * YEAR, "until": now - YEAR, "entries": [], "budgets": [], "next": None}


def test_jobs_continue_after_the_last_one(
    started: StartedGateway, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry(client, by="job")
    monkeypatch.setattr(http_usage, "MOST_ENTRIES", 1)
    first = usage(client, by="job")
    sequences = [asyncio.run(started.store.get(job_id)).sequence for job_id in ("mine", "trains")]
    seen = [entry["sequence"] for entry in first["entries"]]
    while first["next"] is not None:
        first = usage(client, by="job", until=first["until"], after=first["next"])
        seen += [entry["sequence"] for entry in first["entries"]]
    assert seen[-1] == sequences[1]
    assert seen == sorted(set(seen))
    assert set(seen) <= set(sequences)


@pytest.mark.parametrize(
    ("window", "problem"),
    [
        ({"by": "user"}, "Invalid by 'user': Input should be 'person', 'team' or 'job'."),
        ({"since": "yesterday"}, "Invalid since 'yesterday'"),
        ({"until": "-1"}, "Invalid until '-1'"),
        ({"after": "1.5"}, "Invalid after '1.5'"),
    ],
)
def test_invalid_parameter_is_named(client: httpx.Client, window: dict[str, str], problem: str) -> None:
    answer = client.get("/platform/usage", params=window)
    assert answer.status_code == 400
    assert answer.text.startswith(problem)
