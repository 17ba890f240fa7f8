"""Arrays of jobs over HTTP and from the command line: submitted, listed, waited for and stopped as one."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from peopled import as_person, populate
from ray_head import TOKEN
from started_gateway import StartedGateway

from mlplatform.client.jobs import Jobs
from mlplatform.errors import JobError
from mlplatform.gateway.jobs.states import Outcome, Verdict
from mlplatform.settings.job import Settings


@pytest.fixture
def client(started: StartedGateway) -> Iterator[httpx.Client]:
    with started.running() as client:
        yield client


def submit(client: httpx.Client, count: int = 3, **more: Any) -> httpx.Response:
    body = {"job": {"entrypoint": "true", "submission_id": "sweep"}, "count": count, **more}
    return client.post("/platform/arrays", json=body)


def end(started: StartedGateway, outcomes: dict[int, Outcome]) -> None:
    """Let jobs of the array run and end."""
    for index, outcome in outcomes.items():
        job_id = f"sweep.{index}"
        assert asyncio.run(started.store.begin_attempt(job_id))
        asyncio.run(started.store.end_attempt(job_id, 1, Verdict(outcome, "It ended."), None, False))


def test_jobs_of_an_array_have_their_index(started: StartedGateway, client: httpx.Client) -> None:
    job = {
        "entrypoint": "python train.py",
        "submission_id": "sweep",
        "runtime_env": {"env_vars": {"KEY": "value"}},
        "metadata": {"note": "rates"},
    }
    answer = client.post("/platform/arrays", json={"job": job, "count": 3, "at_most": 2})
    assert answer.json() == {"array": "sweep", "jobs": ["sweep.0", "sweep.1", "sweep.2"]}
    for index, row in enumerate(asyncio.run(started.store.get(name)) for name in answer.json()["jobs"]):
        own = {"KEY": "value", "MLPLATFORM_ARRAY_INDEX": str(index), "MLPLATFORM_ARRAY_SIZE": "3"}
        assert row.runtime_env["env_vars"] == own
        assert (row.array_id, row.at_most, row.job_metadata["note"]) == ("sweep", 2, "rates")
    states = {job["submission_id"]: job["status"] for job in client.get("/platform/arrays/sweep").json()["jobs"]}
    assert states == dict.fromkeys(("sweep.0", "sweep.1", "sweep.2"), "PENDING")


def test_metadata_puts_jobs_of_ray_clients_into_an_array(started: StartedGateway, client: httpx.Client) -> None:
    for name in ("a", "b"):
        metadata = {"array": "rates", "at_most": "1", "class": "idle"}
        body = {"entrypoint": "true", "submission_id": name, "metadata": metadata}
        assert client.post("/api/jobs/", json=body).status_code == 200
    assert [job["submission_id"] for job in client.get("/platform/arrays/rates").json()["jobs"]] == ["a", "b"]
    row = asyncio.run(started.store.get("a"))
    assert (row.array_id, row.at_most, row.job_class) == ("rates", 1, "idle")


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"count": 0}, "count=0 is not valid"),
        ({"count": 1001}, "count=1001 is not valid"),
        ({"at_most": 0}, "at_most=0 is not valid"),
        ({"job": {}}, "job.entrypoint is not valid"),
        ({"job": {"entrypoint": "true", "submission_id": "x" * 121}}, "the submission_id of an array has at most 120"),
        ({"job": {"entrypoint": "true", "metadata": {"class": "first"}}}, "class='first' is not valid"),
    ],
)
def test_invalid_array_is_rejected_whole(more: dict[str, Any], sentence: str, client: httpx.Client) -> None:
    answer = submit(client, **more)
    assert (answer.status_code, sentence in answer.text) == (400, True), answer.text
    assert client.get("/platform/arrays/sweep").status_code == 404


def test_array_of_large_jobs_is_rejected(client: httpx.Client) -> None:
    job = {"entrypoint": f"echo {'x' * 60_000}", "submission_id": "sweep"}
    answer = client.post("/platform/arrays", json={"job": job, "count": 1000})
    assert answer.status_code == 400
    assert "1000 jobs of 58 KiB each" in answer.text
    assert client.post("/platform/arrays", json={"job": job, "count": 500}).status_code == 200


def test_array_is_stored_whole_or_not_at_all(started: StartedGateway, client: httpx.Client) -> None:
    started.add("sweep.2", attempts=0)
    assert submit(client).status_code == 409
    assert client.get("/platform/arrays/sweep").status_code == 404
    assert [job["submission_id"] for job in client.get("/api/jobs/").json()] == ["mine", "sweep.2"]


def test_array_that_exceeds_the_waiting_cap_is_rejected(client: httpx.Client) -> None:
    tokens = populate(client)
    assert client.patch("/platform/teams/vision", json={"caps": {"person": {"waiting": 3}}}).status_code == 200
    with as_person(client, tokens["alice"]) as alice:
        assert submit(alice, count=4).text.startswith("alice has 0 waiting jobs, of at most 3 in team vision; submit")
        assert submit(alice, count=3).status_code == 200


def test_only_leads_and_administrators_submit_urgent_jobs(client: httpx.Client) -> None:
    tokens = populate(client)
    statuses = {}
    for name in ("alice", "lena", "ada"):
        with as_person(client, tokens[name]) as person:
            body = {"entrypoint": "true", "metadata": {"class": "urgent"}}
            statuses[name] = person.post("/api/jobs/", json=body).status_code
    assert statuses == {"alice": 403, "lena": 200, "ada": 200}
    assert client.post("/api/jobs/", json={"entrypoint": "true", "metadata": {"class": "urgent"}}).status_code == 200


def test_stop_ends_all_jobs_of_an_array(started: StartedGateway, client: httpx.Client) -> None:
    assert submit(client).status_code == 200
    end(started, {0: Outcome.SUCCEEDED})
    assert client.post("/platform/arrays/sweep/stop").json() == {"stopped": 2}
    assert client.post("/platform/arrays/sweep/stop").json() == {"stopped": 0}
    states = [job["status"] for job in client.get("/platform/arrays/sweep").json()["jobs"]]
    assert states == ["SUCCEEDED", "STOPPED", "STOPPED"]
    assert client.post("/platform/arrays/missing/stop").status_code == 404


def test_array_is_stopped_by_those_who_may_stop_its_jobs(client: httpx.Client) -> None:
    tokens = populate(client)
    with as_person(client, tokens["alice"]) as alice:
        assert submit(alice).status_code == 200
    with as_person(client, tokens["bob"]) as bob, as_person(client, tokens["lena"]) as lena:
        assert bob.post("/platform/arrays/sweep/stop").status_code == 403
        assert [job["status"] for job in bob.get("/platform/arrays/sweep").json()["jobs"]] == ["PENDING"] * 3
        assert lena.post("/platform/arrays/sweep/stop").json() == {"stopped": 3}


def test_job_of_another_team_keeps_nobody_from_stopping_an_array(client: httpx.Client) -> None:
    tokens = populate(client)
    with as_person(client, tokens["alice"]) as alice, as_person(client, tokens["otto"]) as otto:
        assert submit(alice).status_code == 200
        body = {"entrypoint": "true", "submission_id": "foreign", "metadata": {"array": "sweep"}}
        assert otto.post("/api/jobs/", json=body).status_code == 200
        assert alice.post("/platform/arrays/sweep/stop").json() == {"stopped": 3}
        assert otto.get("/api/jobs/foreign").json()["status"] == "PENDING"


def test_command_line_submits_lists_and_stops_arrays(
    started: StartedGateway, client: httpx.Client, tmp_path: Path
) -> None:
    folder = tmp_path / "sweep"
    folder.mkdir()
    (folder / "job.toml").write_text('entrypoint = "true"\narray = 2\nclass = "idle"\n')
    token = tmp_path / "token"
    token.write_text(TOKEN)
    environment = {**os.environ, "RAY_ADDRESS": str(client.base_url), "RAY_AUTH_TOKEN_PATH": str(token)}

    def typed(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mlplatform", *words]
        return subprocess.run(
            command, env={**environment, "COLUMNS": "200"}, capture_output=True, text=True, check=False
        )

    done = typed("submit", str(folder), "--array", "3", "--at-most", "1", "--no-wait")
    assert "with 3 jobs" in done.stdout, done.stderr
    array_id = done.stdout.split()[2]
    row = asyncio.run(started.store.get(f"{array_id}.2"))
    assert (row.at_most, row.job_class, row.runtime_env["env_vars"]["MLPLATFORM_ARRAY_SIZE"]) == (1, "idle", "3")
    (line,) = [line for line in typed("jobs").stdout.splitlines() if array_id in line]
    assert "3 PENDING" in line
    shown = typed("jobs", array_id).stdout
    assert [f"{array_id}.{index}" in shown for index in range(3)] == [True] * 3
    assert typed("stop", array_id).stdout == f"3 jobs of array {array_id} are stopping.\n"
    waited = typed("wait", array_id)
    assert (waited.returncode, f"3 of the 3 jobs of array {array_id} did not succeed" in waited.stderr) == (1, True)


def test_python_waits_for_all_jobs_of_an_array(started: StartedGateway, client: httpx.Client, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    assert submit(client).status_code == 200
    end(started, dict.fromkeys(range(3), Outcome.SUCCEEDED))
    progress: list[str] = []
    with Jobs(Settings.load(ray_address=str(client.base_url), ray_auth_token_path=str(token))) as jobs:
        array = jobs.arrays.wait("sweep", on_change=progress.append)
        assert (array.ended, array.failed, progress) == (True, [], ["3 SUCCEEDED"])
        with pytest.raises(JobError, match="Array 'missing' does not exist"):
            jobs.arrays.get("missing")
