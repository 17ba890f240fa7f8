"""Time limits of jobs over HTTP: from the command line, from Ray's clients, and from the team."""

from pathlib import Path

import httpx
import pytest
from peopled import as_person, populate, submit, typed
from ray_head import TOKEN

from mlplatform.client.jobs import Jobs
from mlplatform.errors import JobError
from mlplatform.settings.job import Settings


def limit_of(client: httpx.Client, job_id: str) -> float | None:
    answer = client.get(f"/platform/jobs/{job_id}")
    assert answer.status_code == 200, answer.text
    return answer.json()["limit_s"]


def test_shared_token_sets_no_limit_by_default(client: httpx.Client) -> None:
    for job_id, metadata in (("free", {}), ("limited", {"time_limit": "90m"})):
        assert client.post("/api/jobs/", json={"entrypoint": "true", "submission_id": job_id, "metadata": metadata})
    assert (limit_of(client, "free"), limit_of(client, "limited")) == (None, 5400)


def test_limit_of_team_is_the_default(client: httpx.Client) -> None:
    tokens = populate(client)
    with as_person(client, tokens["alice"]) as alice, as_person(client, tokens["ada"]) as ada:
        assert submit(alice, "first").status_code == 200
        assert client.patch("/platform/teams/vision", json={"default_limit_s": 600}).status_code == 200
        assert submit(alice, "second").status_code == 200
        assert submit(alice, "own", metadata={"time_limit": "2d"}).status_code == 200
        assert submit(ada, "administrators").status_code == 200
        assert submit(ada, "for-vision", metadata={"team": "vision"}).status_code == 200
    limits = [limit_of(client, job_id) for job_id in ("first", "second", "own", "administrators", "for-vision")]
    assert limits == [86400, 600, 172_800, None, 600]


def test_invalid_limit_is_rejected_with_one_sentence(client: httpx.Client) -> None:
    answer = client.post("/api/jobs/", json={"entrypoint": "true", "metadata": {"time_limit": "4 hours"}})
    assert answer.status_code == 400
    assert answer.text == (
        "time_limit='4 hours' is not valid: use a number of at most 6 digits and s, m, h, d or w, as in 7d; correct it "
        "and submit again."
    )


def test_command_line_and_python_set_the_limit(client: httpx.Client, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "job.toml").write_text('entrypoint = "true"\nlimit = "1h"\n')
    token = tmp_path / "token"
    token.write_text(TOKEN)
    words = ("submit", str(folder), "--no-wait")
    by_file, by_option = typed(client, *words), typed(client, *words, "--limit", "2d")
    ids = [done.stdout.split()[2].rstrip(";") for done in (by_file, by_option)]
    assert [limit_of(client, job_id) for job_id in ids] == [3600, 172_800], by_option.stderr
    wrong = typed(client, *words, "--limit", "soon")
    assert "The options cannot be used: limit = 'soon': use a number of at most 6 digits" in wrong.stderr
    with Jobs(Settings.load(ray_address=str(client.base_url), ray_auth_token_path=str(token))) as jobs:
        job_id = jobs.submit("true", folder, limit_s=90.5)
        assert jobs.with_attempts(job_id).limit_s == limit_of(client, job_id) == 91
        with pytest.raises(JobError, match=r"limit='0s' is not valid: use at least 1s and at most 366d"):
            jobs.submit("true", folder, limit_s=0)
