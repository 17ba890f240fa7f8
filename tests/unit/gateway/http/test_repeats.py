"""Jobs after others, schedules and repetitions over HTTP and from the command line, and who may submit them."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from peopled import submit, typed
from ray_head import TOKEN
from started_gateway import StartedGateway

from mlplatform.api.jobs import Submission
from mlplatform.client.jobs import Jobs
from mlplatform.errors import JobError
from mlplatform.settings.job import Settings

OWN = {"env_vars": {"MLPLATFORM_JOB_ID": "hers", "MLPLATFORM_USER": "alice", "MLFLOW_EXPERIMENT_NAME": "food"}}
"""Environment without variables of the job's own, as `mlplatform submit` sends it."""

NIGHTLY = {"mlplatform.schedule": "0 3 * * *"}


def details(client: httpx.Client, job_id: str) -> dict[str, Any]:
    answer = client.get(f"/platform/jobs/{job_id}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def listed(client: httpx.Client, **params: str) -> dict[str, dict[str, Any]]:
    return {entry["job"]: entry for entry in client.get("/platform/queue", params=params).json()["entries"]}


def again(client: httpx.Client, job_id: str, *arguments: str) -> httpx.Response:
    return client.post(f"/platform/jobs/{job_id}/again", json={"arguments": list(arguments)})


def test_rays_client_names_jobs_in_metadata(started: StartedGateway, client: httpx.Client) -> None:
    body = {"entrypoint": "true", "submission_id": "next", "metadata": {"mlplatform.after": "mine, mine"}}
    assert client.post("/api/jobs/", json=body).status_code == 200
    job = details(client, "next")
    assert (job["state"], job["status"], job["links"]["after"]) == ("HELD", "PENDING", ["mine", "mine"])
    (entry,) = listed(client, job="next").values()
    assert (entry["place"], entry["next"]) == (None, None)
    assert entry["reasons"] == [{"rule": "after", "text": "The job starts after mine."}]
    assert "mine" not in listed(client)
    shown = next(job for job in client.get("/platform/overview").json()["jobs"] if job["id"] == "next")
    assert (shown["state"], shown["message"]) == ("HELD", "The job starts after mine.")
    started.end()
    assert details(client, "next")["state"] == "WAITING"


@pytest.mark.parametrize(
    ("metadata", "status", "sentence"),
    [
        ({"mlplatform.after": "missing"}, 404, "Job missing does not exist, so no job can start after it."),
        ({"mlplatform.after": "done"}, 409, "Job done is STOPPED, so no job starts after it; name one that succeeds."),
        ({"mlplatform.after": "no!"}, 400, "mlplatform.after.0='no!' is not valid"),
        ({"mlplatform.after": ","}, 400, "mlplatform.after=[] is not valid"),
        ({"mlplatform.after": "mine", **NIGHTLY}, 400, "The body is not valid: schedule='0 3 * * *' cannot have"),
    ],
)
def test_impossible_wish_is_rejected(
    metadata: dict[str, str], status: int, sentence: str, started: StartedGateway, client: httpx.Client
) -> None:
    started.add("done", attempts=0)
    client.post("/api/jobs/done/stop").raise_for_status()
    answer = client.post("/api/jobs/", json={"entrypoint": "true", "submission_id": "next", "metadata": metadata})
    assert (answer.status_code, answer.text[: len(sentence)]) == (status, sentence)
    assert "next" not in {job["submission_id"] for job in client.get("/api/jobs/").json()}


def test_metadata_of_scripts_stays_their_own(client: httpx.Client) -> None:
    metadata = {"schedule": "cosine", "after": "pre-training, frozen", "timezone": "t" * 101}
    client.post("/api/jobs/", json={"entrypoint": "true", "submission_id": "next", "metadata": metadata})
    job = details(client, "next")
    assert (job["state"], job["metadata"]) == ("WAITING", metadata)


def test_description_has_lists_of_jobs() -> None:
    metadata = Submission.model_json_schema()["properties"]["metadata"]
    pattern = metadata["properties"]["mlplatform.after"]["pattern"]
    for given, valid in (("a", True), ("a,b", True), ("a, b", True), ("", False), (",", False), ("no!", False)):
        assert bool(re.search(pattern, given)) == valid


def test_owner_and_team_repeat_job_with_other_arguments(people: dict[str, httpx.Client]) -> None:
    metadata = {"user": "alice", "workers": "2"}
    submit(people["alice"], "hers", runtime_env=OWN, metadata=metadata).raise_for_status()
    for name in ("alice", "bob", "lena", "ada"):
        answer = again(people[name], "hers", "--lr", "1e-4")
        assert answer.status_code == 200, answer.text
        job = details(people[name], answer.json()["submission_id"])
        assert (job["entrypoint"], job["links"]["origin"]) == ("python train.py --lr 1e-4", "hers")
        assert job["metadata"] == {"user": name, "team": "vision", "workers": "2"}
        assert (job["relation"], job["runtime_env"]["env_vars"]["MLPLATFORM_USER"]) == ("owner", name)
    refused = again(people["otto"], "hers")
    assert (refused.status_code, refused.text) == (
        403,
        "Job hers belongs to alice of team vision, so otto cannot submit it again; only alice, members of team vision "
        "and administrators can.",
    )


def test_shared_token_repeats_as_its_caller(people: dict[str, httpx.Client], client: httpx.Client) -> None:
    submit(people["alice"], "hers", runtime_env=OWN, metadata={"user": "alice"}).raise_for_status()
    sent = client.post("/platform/jobs/hers/again", json={"user": "otto"})
    job = details(client, sent.json()["submission_id"])
    assert job["metadata"]["user"] == job["runtime_env"]["env_vars"]["MLPLATFORM_USER"] == "otto"


def test_values_of_variables_stay_with_their_owner(people: dict[str, httpx.Client]) -> None:
    submit(people["alice"], "hers").raise_for_status()
    for name in ("bob", "lena", "ada"):
        answer = again(people[name], "hers")
        sentence = "Job hers has variables whose values only its owner may use (KEY); submit your own."
        assert (answer.status_code, answer.text) == (403, sentence)
    copy = again(people["alice"], "hers").json()["submission_id"]
    assert details(people["alice"], copy)["runtime_env"]["env_vars"]["KEY"] == "value-of-key"


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [(["a\0"], 400, "arguments.0='a\\x00' is not valid"), (["x" * (16 << 10)], 413, "The body is larger than")],
)
def test_arguments_are_checked(arguments: list[str], status: int, sentence: str, client: httpx.Client) -> None:
    answer = again(client, "mine", *arguments)
    assert (answer.status_code, answer.text[: len(sentence)]) == (status, sentence)


def test_repetition_without_files_is_rejected(started: StartedGateway, client: httpx.Client) -> None:
    started.add("lost", runtime_env={"working_dir": "gcs://_ray_pkg_0123456789abcdef.zip"})
    answer = again(client, "lost")
    assert (answer.status_code, answer.text[:22]) == (409, "The files of job lost,")


def test_command_line_repeats_and_explains(started: StartedGateway, client: httpx.Client, tmp_path: Path) -> None:
    started.add("train", attempts=0, entrypoint="python train.py --lr 1")
    done = typed(client, "again", "train", "--no-wait", "--", "--lr", "1e-4")
    assert done.stdout.startswith("Submitted job train-2"), done.stderr
    job_id = done.stdout.split()[2].rstrip(";")
    assert details(client, job_id)["metadata"]["user"] == Settings.load().user
    shown = typed(client, "jobs", job_id).stdout
    assert "python train.py --lr 1e-4" in shown
    assert ["Repeats", "train"] in [line.split() for line in shown.splitlines()]
    (tmp_path / "token").write_text(TOKEN)
    with Jobs(Settings.load(ray_address=str(client.base_url), ray_auth_token_path=str(tmp_path / "token"))) as jobs:
        held = jobs.submit("true", None, name="held", after=["mine", job_id])
        assert jobs.with_attempts(held).links.after == ["mine", job_id]
        with pytest.raises(JobError, match=r"mlplatform.after=\[\] is not valid"):
            jobs.submit("true", None, after=[""])
    why = typed(client, "why", held).stdout
    assert why.splitlines()[1:] == [f"- The job starts after mine, {job_id}. [after]"]
    assert held in typed(client, "queue").stdout
    failed = typed(client, "again", held, "--", "--lr", "1")
    assert (failed.returncode, "cannot be replaced" in failed.stderr) == (1, True)


def test_command_line_submits_lists_and_ends_schedule(client: httpx.Client, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/nightly.py").write_text("print(1)")
    words = ["--schedule", "0 3 * * *", "--timezone", "Europe/Berlin"]
    done = typed(client, "submit", str(tmp_path / "work/nightly.py"), *words)
    assert (done.returncode, done.stdout[:17]) == (0, "Schedule nightly-"), done.stderr
    assert "The next job is submitted at 20" in done.stdout
    assert "03:00 (Europe/Berlin)" in done.stdout
    job_id = done.stdout.split()[1].rstrip(":")
    (entry,) = listed(client, job=job_id).values()
    assert entry["next"] == details(client, job_id)["links"]["due"]
    shown = next(job for job in client.get("/platform/overview").json()["jobs"] if job["id"] == job_id)
    assert (shown["state"], shown["links"]["due"]) == ("SCHEDULED", entry["next"])
    assert f"`mlplatform stop {job_id}` ends it" in done.stdout
    waited = typed(client, "wait", job_id)
    assert (waited.returncode, f"Job {job_id} is a schedule, which does not end" in waited.stderr) == (1, True)
    assert typed(client, "stop", job_id).returncode == 0
    assert listed(client) == {}


def test_invalid_schedule_is_rejected_over_http(client: httpx.Client) -> None:
    often, never = ({"mlplatform.schedule": given} for given in ("often", ""))
    for metadata in (often, never, {**NIGHTLY, "mlplatform.timezone": "Mars/Base"}):
        answer = client.post("/api/jobs/", json={"entrypoint": "true", "metadata": metadata})
        assert (answer.status_code, answer.text[:16]) == (400, "Invalid schedule"), answer.text


def test_no_job_starts_after_schedule(client: httpx.Client) -> None:
    body = {"entrypoint": "true", "submission_id": "nightly", "metadata": NIGHTLY}
    client.post("/api/jobs/", json=body).raise_for_status()
    answer = client.post("/api/jobs/", json={"entrypoint": "true", "metadata": {"mlplatform.after": "nightly"}})
    assert (answer.status_code, answer.text[:24]) == (409, "Job nightly is SCHEDULED")
