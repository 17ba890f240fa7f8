"""Options of submissions that order jobs: groups with a limit, caps and classes."""

import asyncio
from pathlib import Path

import httpx
import pytest
from peopled import as_person, populate, typed
from started_gateway import StartedGateway


def test_metadata_puts_jobs_into_a_group(started: StartedGateway, client: httpx.Client) -> None:
    body = {"entrypoint": "true", "submission_id": "a"}
    answer = client.post("/api/jobs/", json={**body, "metadata": {"group": "rates", "at_most": "1", "class": "idle"}})
    assert answer.status_code == 200
    row = asyncio.run(started.store.get("a"))
    assert (row.group_name, row.at_most, row.job_class) == ("rates", 1, "idle")


@pytest.mark.parametrize(
    ("metadata", "sentence"),
    [
        ({"group": "rates", "at_most": "0"}, "at_most='0' is not valid"),
        ({"at_most": "4"}, "at_most=4 needs `group`, the name of the jobs that it counts"),
        ({"class": "first"}, "class='first' is not valid"),
    ],
)
def test_invalid_option_is_rejected(metadata: dict[str, str], sentence: str, client: httpx.Client) -> None:
    answer = client.post("/api/jobs/", json={"entrypoint": "true", "metadata": metadata})
    assert (answer.status_code, sentence in answer.text) == (400, True), answer.text


def test_job_that_exceeds_the_waiting_cap_is_rejected(client: httpx.Client) -> None:
    tokens = populate(client)
    assert client.patch("/platform/teams/vision", json={"caps": {"person": {"waiting": 2}}}).status_code == 200
    with as_person(client, tokens["alice"]) as alice:
        answers = [alice.post("/api/jobs/", json={"entrypoint": "true"}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[-1].text.startswith("alice has 2 waiting jobs, of at most 2 in team vision; submit the job when")


def test_only_leads_and_administrators_submit_urgent_jobs(client: httpx.Client) -> None:
    tokens = populate(client)
    statuses = {}
    for name in ("alice", "lena", "ada"):
        with as_person(client, tokens[name]) as person:
            body = {"entrypoint": "true", "metadata": {"class": "urgent"}}
            statuses[name] = person.post("/api/jobs/", json=body).status_code
    assert statuses == {"alice": 403, "lena": 200, "ada": 200}
    assert client.post("/api/jobs/", json={"entrypoint": "true", "metadata": {"class": "urgent"}}).status_code == 200


def test_command_line_limits_jobs_of_one_name(started: StartedGateway, client: httpx.Client, tmp_path: Path) -> None:
    folder = tmp_path / "my sweep"
    folder.mkdir()
    (folder / "job.toml").write_text('entrypoint = "true"\nat_most = 3\nclass = "idle"\n')
    rows = []
    for more in ((), ("--at-most", "1")):
        done = typed(client, "submit", str(folder), *more, "--no-wait")
        assert done.returncode == 0, done.stderr
        rows.append(asyncio.run(started.store.get(done.stdout.split()[2].rstrip(";"))))
    assert [(row.group_name, row.at_most, row.job_class) for row in rows] == [
        ("my-sweep", 3, "idle"),
        ("my-sweep", 1, "idle"),
    ]
