"""The Jobs API client with stand-in servers; tests/embedded tests it with the real Ray."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mlplatform.api.jobs import ID, Job
from mlplatform.capacity.resources import Resources, Shortage, WorkerGroup
from mlplatform.client.jobs import Jobs, new_id, report_in
from mlplatform.errors import AccessError, CapacityError, JobError, SettingsError
from mlplatform.settings.job import Settings

Answer = tuple[int, str]
Answers = Callable[[str, str], Answer]
JobsAt = Callable[[Answers], Jobs]

LACKS_GATEWAY = r"http://127\.0\.0\.1:\d+ is not the platform's gateway; set RAY_ADDRESS"

NODE = "349f0e42168e3540df259fb0267e268f39022d85f311b48e0fd4d090"


def job(status: str, node: str | None = NODE) -> str:
    details = {"submission_id": "a", "job_id": None, "status": status, "entrypoint": "python a.py", "metadata": None}
    return json.dumps({**details, "driver_node_id": node})


@pytest.fixture
def jobs_at(serve: Callable[..., str]) -> Iterator[JobsAt]:
    """Clients of servers that answer with the given functions of method and path."""
    with ExitStack() as clients:
        yield lambda answer: clients.enter_context(Jobs(Settings.load(ray_address=serve(answer))))


def log_of(statuses: list[Answer], logs: list[Answer]) -> tuple[Answers, list[int]]:
    """Answer with a job's statuses and logs in turn, repeating the last ones; and the requested `skip_lines`."""
    skipped = []

    def answer(method: str, path: str) -> Answer:
        if path.startswith("/platform/jobs/a/log"):
            skipped.append(int(path.partition("skip_lines=")[2]))
            return logs.pop(0) if len(logs) > 1 else logs[0]
        return statuses.pop(0) if len(statuses) > 1 else statuses[0]

    return answer, skipped


def recorded(*given: Answer) -> tuple[Answers, list[tuple[str, str]]]:
    """Answer in turn, repeating the last one; also return method and path of each request."""
    left, seen = list(given), []

    def answer(method: str, path: str) -> Answer:
        seen.append((method, path))
        return left.pop(0) if len(left) > 1 else left[0]

    return answer, seen


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlplatform.client.connection.POLL_SECONDS", 0.05)


def test_log_is_followed_line_by_line(jobs_at: JobsAt) -> None:
    statuses = [(200, job("PENDING", None)), (200, job("RUNNING")), (200, job("SUCCEEDED"))]
    answer, skipped = log_of(statuses, [(200, "one\ntwo\n"), (200, "three without end")])
    assert list(jobs_at(answer).follow("a")) == ["one", "two", "three without end"]
    assert skipped == [0, 2]


def test_follower_counts_omitted_lines_of_long_log(jobs_at: JobsAt) -> None:
    running = (200, job("RUNNING"))
    omitted = "mlplatform: 12.0 MiB of this log (98 lines) were omitted here."
    logs = [(200, f"one\n{omitted}\n100\n"), (200, "101\n")]
    answer, skipped = log_of([running, running, (200, job("SUCCEEDED"))], logs)
    assert list(jobs_at(answer).follow("a")) == ["one", omitted, "100", "101"]
    assert skipped == [0, 100]


def test_brief_gateway_outage_loses_no_log_lines(jobs_at: JobsAt) -> None:
    running = (200, job("RUNNING"))
    unavailable = [(404, "Job a does not exist"), (500, "")]
    statuses = [running, running, *unavailable, running, running, (200, job("SUCCEEDED"))]
    answer, skipped = log_of(statuses, [(200, "one\n"), (500, ""), (503, "try again\n"), (200, "two\n")])
    assert list(jobs_at(answer).follow("a")) == ["one", "two"]
    assert skipped == [0, 1, 1, 1]


def test_job_without_output_has_empty_log(jobs_at: JobsAt) -> None:
    answer, _ = log_of([(200, job("FAILED", None))], [(200, "")])
    assert list(jobs_at(answer).follow("a")) == []


def test_status_422_raises_capacity_error(jobs_at: JobsAt, tmp_path: Path) -> None:
    jobs = jobs_at(lambda method, _: (422, "The entry point asks for 4 GPUs.") if method == "POST" else (200, ""))
    with pytest.raises(CapacityError, match="asks for 4 GPUs"):
        jobs.submit("true", tmp_path)


def test_error_responses_are_not_log_lines(jobs_at: JobsAt) -> None:
    answer, skipped = log_of([(200, job("SUCCEEDED"))], [(503, "try again\n"), (200, "one\ntwo\n")])
    assert list(jobs_at(answer).follow("a")) == ["one", "two"]
    assert skipped == [0, 0]


@pytest.mark.parametrize("name", ["digits", "größe", ".hidden", "--", "損失", "a" * 500, "a b/c"])
def test_generated_id_is_valid_for_any_job_name(name: str) -> None:
    assert re.fullmatch(ID, new_id(name))


@pytest.mark.parametrize("ask", [lambda jobs: jobs.wait("a"), lambda jobs: list(jobs.follow("a"))])
def test_client_retries_while_gateway_database_is_unavailable(ask: Callable[[Jobs], object], jobs_at: JobsAt) -> None:
    answers = [(503, "The gateway's database does not answer; try again."), (200, job("SUCCEEDED", None))]
    answer, _ = log_of(answers, [(200, "")])
    ask(jobs_at(answer))


@pytest.mark.parametrize(("answer", "expected"), [({"driver_exit_code": 3}, 3), ({}, None)])
def test_job_has_exit_code_of_entry_point(answer: dict[str, int], expected: int | None, jobs_at: JobsAt) -> None:
    details = json.dumps({"submission_id": "t", "status": "FAILED", "entrypoint": "true", **answer})
    assert jobs_at(lambda *_: (200, details)).get("t").exit_code == expected


def test_wait_times_out(jobs_at: JobsAt) -> None:
    with pytest.raises(JobError, match="Job a is still RUNNING after 0 s"):
        jobs_at(lambda *_: (200, job("RUNNING"))).wait("a", timeout_s=0)


LISTED = [
    json.loads(job(status)) | {"submission_id": str(number), "start_time": number, "metadata": {"user": user}}
    for number, (status, user) in enumerate(
        [("FAILED", "ada"), ("RUNNING", "ada"), ("FAILED", "ben"), ("FAILED", "ada")]
    )
]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, ["3", "2", "1", "0"]),
        ({"limit": 2}, ["3", "2"]),
        ({"state": "failed", "user": "ada"}, ["3", "0"]),
        ({"state": "FAILED", "user": "ada", "limit": 1}, ["3"]),
        ({"user": "cy"}, []),
    ],
)
def test_jobs_are_filtered_and_listed_latest_first(wanted: dict[str, Any], found: list[str], jobs_at: JobsAt) -> None:
    jobs = jobs_at(lambda *_: (200, json.dumps(LISTED)))
    assert [known.id for known in jobs.list(**wanted)] == found
    with pytest.raises(JobError, match="Invalid state 'DONE': use one of PENDING, "):
        jobs.list(state="DONE")


def test_only_ended_known_jobs_are_deleted(jobs_at: JobsAt) -> None:
    stop_first = "it is in a non-terminal state RUNNING; stop it first."
    answers = {"DELETE /api/jobs/a": (200, "{}"), "DELETE /api/jobs/b": (500, stop_first)}
    jobs = jobs_at(lambda method, path: answers.get(f"{method} {path}", (404, "no")))
    jobs.delete("a")
    with pytest.raises(JobError, match="non-terminal state RUNNING; stop it first"):
        jobs.delete("b")
    with pytest.raises(JobError, match="There is no job 'c'"):
        jobs.delete("c")


def test_each_submission_of_small_folder_takes_two_requests(serve: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    answer, seen = recorded((200, json.dumps({"submission_id": "given"})))
    with Jobs(Settings.load(ray_address=serve(answer), driver_label="role=worker")) as jobs:
        for _ in range(2):  # the gateway compares the content: a name says nothing about it
            assert jobs.submit(["python", "a b.py"], tmp_path) == "given"
    package = seen[0][1]
    assert package.startswith("/api/packages/gcs/_ray_pkg_")
    assert seen == [("PUT", package), ("POST", "/api/jobs/")] * 2


def test_infeasible_job_is_rejected_before_upload(jobs_at: JobsAt, tmp_path: Path) -> None:
    sentence = "One worker asks for 1 CPU and 2 GPUs; no node has more than 1 GPU (ray-worker-0: 4 CPUs and 1 GPU)."
    answer, seen = recorded((422, sentence))
    with pytest.raises(CapacityError) as error:
        jobs_at(answer).submit("true", tmp_path, workers=WorkerGroup(2, gpus=2))
    assert str(error.value) == sentence
    assert seen == [("POST", "/platform/capacity")]


def test_shortage_is_returned_and_job_is_submitted(jobs_at: JobsAt, tmp_path: Path) -> None:
    shortage = {"missing": "1 GPU", "users": ["a", "b"], "unavailable": ["ray-worker-1"]}
    answers = {"/platform/capacity": {"shortage": shortage}, "/api/jobs/": {"submission_id": "given"}}
    jobs, waits = jobs_at(lambda _, path: (200, json.dumps(answers.get(path)))), list[Shortage]()
    assert jobs.submit("true", tmp_path, resources=Resources(gpus=1), on_wait=waits.append) == "given"
    assert waits == [Shortage("1 GPU", ("a", "b"), ("ray-worker-1",))]


def test_path_that_older_gateway_lacks_is_named_before_upload(
    jobs_at: JobsAt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlplatform.client.connection.GATEWAY_HEADER", "Content-Length")
    answer, seen = recorded((404, "404: Not Found"))
    with pytest.raises(JobError, match="has version 14 and lacks /platform/capacity; upgrade it with `make up`"):
        jobs_at(answer).submit("true", tmp_path, resources=Resources(gpus=4))
    assert seen == [("POST", "/platform/capacity")]


def test_job_with_resources_is_not_uploaded_unchecked(jobs_at: JobsAt, tmp_path: Path) -> None:
    """A head of Ray without a gateway would let an infeasible job wait indefinitely."""
    answer, seen = recorded((404, "404: Not Found"))
    with pytest.raises(JobError, match=LACKS_GATEWAY):
        jobs_at(answer).submit("true", tmp_path, resources=Resources(gpus=1))
    assert seen == [("POST", "/platform/capacity")]


@pytest.mark.parametrize("status", [401, 403])
def test_rejected_token_error_names_token_file(status: int, serve: Callable[..., str], tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("wrong-token\n")
    address = serve(lambda method, path: (status, "Unauthorized"))
    with (
        Jobs(Settings.load(ray_address=address, ray_auth_token_path=token)) as jobs,
        pytest.raises(AccessError) as error,
    ):
        jobs.list()
    assert str(token) in str(error.value)
    assert "wrong-token" not in str(error.value)


def test_unreadable_token_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"RAY_AUTH_TOKEN_PATH='.*missing' cannot be read"):
        Jobs(Settings.load(ray_auth_token_path=tmp_path / "missing"))


def test_missing_folder_is_rejected_before_any_request(tmp_path: Path) -> None:
    with Jobs(Settings.load()) as jobs, pytest.raises(JobError, match=r"There is no folder .*/none"):
        jobs.submit("python a.py", tmp_path / "none")


def test_last_line_of_ray_error_is_reported(jobs_at: JobsAt) -> None:
    with pytest.raises(JobError, match=r"rejected the request \(500\): ValueError: id taken"):
        jobs_at(lambda *_: (500, "Traceback\n  file\nValueError: id taken")).get("a")


@pytest.mark.parametrize(
    ("line", "report"),
    [
        ('\x1b[36m(TrainController pid=7)\x1b[0m mlplatform report {"step": 3, "loss": 0.5}', {"step": 3, "loss": 0.5}),
        ('mlplatform report {"step": 3, "lo', None),
        ("loss 0.5", None),
    ],
)
def test_reports_are_parsed_from_job_log(line: str, report: dict[str, float] | None) -> None:
    assert report_in(line) == report


def test_job_in_notebook_shows_no_variables() -> None:
    answer = {"submission_id": "mine", "status": "RUNNING", "entrypoint": "true", "metadata": {"key": "a-secret"}}
    job = Job.model_validate({**answer, "runtime_env": {"env_vars": {"HF_TOKEN": "a-secret"}}})
    assert "mine" in repr(job)
    assert "a-secret" not in repr(job)
    assert {job, job} == {job}
