"""Resuming a job over HTTP, from the command line and from Python, and who may do it."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from peopled import as_person, populate, submit, typed
from ray_head import TOKEN
from started_gateway import StartedGateway

from mlplatform.client.jobs import Jobs
from mlplatform.errors import JobError
from mlplatform.settings.job import Settings
from mlplatform_gateway.jobs.states import Outcome


@pytest.fixture
def client(started: StartedGateway) -> Iterator[httpx.Client]:
    started.end(Outcome.FAILED)
    with started.running() as client:
        yield client


def checkpoint(folder: Path) -> None:
    """Let the job `mine` have a checkpoint."""
    file = folder / "storage/mine/fit/checkpoint_000001/state"
    file.parent.mkdir(parents=True)
    file.touch()


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_answer_tells_where_the_job_continues(has_checkpoint: bool, client: httpx.Client, tmp_path: Path) -> None:
    if has_checkpoint:
        checkpoint(tmp_path)
    answer = client.post("/platform/jobs/mine/resume", json={"limit": "8h"})
    where = "continues from its last checkpoint" if has_checkpoint else "starts from the beginning"
    message = f"The job was resumed: attempt 2 {where} as soon as there is room."
    assert (answer.status_code, answer.json()) == (200, {"submission_id": "mine", "limit_s": 28800, "message": message})
    details = client.get("/api/jobs/mine").json()
    assert (details["status"], details["end_time"]) == ("PENDING", None)
    assert message in client.get("/api/jobs/mine/logs").json()["logs"]
    assert "resume" in [row["verb"] for row in client.get("/platform/audit").json()["entries"]]
    listed = [job for job in client.get("/api/jobs/").json() if job["submission_id"] == "mine"]
    assert [job["status"] for job in listed] == ["PENDING"], "the list has an old answer"


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        ({"limit": "soon"}, 400, "limit='soon' is not valid: use a number of at most 6 digits"),
        ({"limit": [7200]}, 400, "limit=[7200] is not valid: use a number of at most 6 digits"),
        ({"image": "x"}, 400, "image='x' is not valid"),
    ],
)
def test_invalid_change_is_rejected(body: dict[str, str], status: int, sentence: str, client: httpx.Client) -> None:
    answer = client.post("/platform/jobs/mine/resume", json=body)
    assert (answer.status_code, answer.text[: len(sentence)]) == (status, sentence)
    assert client.get("/api/jobs/mine").json()["status"] == "FAILED"


def test_job_without_its_files_is_not_resumed(started: StartedGateway, client: httpx.Client) -> None:
    environment = {"working_dir": "gcs://_ray_pkg_0123456789abcdef.zip"}
    started.add("lost", runtime_env=environment)
    started.end(Outcome.FAILED, "lost")
    answer = client.post("/platform/jobs/lost/resume")
    expected = "The files of job lost, package _ray_pkg_0123456789abcdef.zip, were removed since it ended"
    assert (answer.status_code, answer.text[: len(expected)]) == (409, expected)


def test_owner_who_has_left_the_team_does_not_resume(started: StartedGateway, client: httpx.Client) -> None:
    tokens = populate(client)
    assert client.post("/platform/people", json={"name": "alice", "team": "audio"}).status_code == 200
    with as_person(client, tokens["alice"]) as alice:
        assert submit(alice, "hers").status_code == 200
        assert alice.post("/api/jobs/hers/stop").status_code == 200
        assert client.delete("/platform/people/alice", params={"team": "vision"}).status_code == 200
        refused = alice.post("/platform/jobs/hers/resume")
        expected = "You may not submit jobs for team 'vision'; your teams are audio."
        assert (refused.status_code, refused.text) == (403, expected)
    with as_person(client, tokens["lena"]) as lena:
        assert lena.post("/platform/jobs/hers/resume").status_code == 200
    assert "The job was resumed by lena" in asyncio.run(started.store.get("hers")).message


def test_former_lead_does_not_resume_urgent_job(client: httpx.Client) -> None:
    tokens = populate(client)
    with as_person(client, tokens["lena"]) as lena:
        assert submit(lena, "hers", metadata={"class": "urgent"}).status_code == 200
        assert lena.post("/api/jobs/hers/stop").status_code == 200
        demoted = client.post("/platform/people", json={"name": "lena", "team": "vision", "lead": False})
        assert demoted.status_code == 200
        refused = lena.post("/platform/jobs/hers/resume")
    assert (refused.status_code, refused.text[:38]) == (403, "Only leads of team vision and administ")


def test_command_line_and_python_resume(client: httpx.Client, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    done = typed(client, "resume", "mine", "--limit", "2h")
    assert (done.returncode, done.stdout[:32]) == (0, "The job was resumed: attempt 2 s"), done.stderr
    again = typed(client, "resume", "mine")
    assert (again.returncode, "there is nothing to resume" in again.stderr) == (1, True)
    missing = typed(client, "resume", "missing")
    assert "There is no job 'missing'" in missing.stderr
    assert json.loads(client.post("/api/jobs/mine/stop").text)["stopped"]
    with Jobs(Settings.load(ray_address=str(client.base_url), ray_auth_token_path=str(token))) as jobs:
        assert jobs.resume("mine", limit_s=60).startswith("The job was resumed")
        assert jobs.with_attempts("mine").limit_s == 60
        with pytest.raises(JobError, match="there is nothing to resume"):
            jobs.resume("mine")
