"""The Jobs API client with stand-in servers; tests/embedded tests it with the real Ray."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlplatform.api.jobs import ID
from mlplatform.client.jobs import Jobs, new_id, report_in
from mlplatform.errors import AccessError, CapacityError, JobError, SettingsError, UnreachableError
from mlplatform.scheduling.capacity import Shortage
from mlplatform.scheduling.resources import Resources, WorkerGroup
from mlplatform.settings.job import Settings

Answer = tuple[int, str]


NODE = "349f0e42168e3540df259fb0267e268f39022d85f311b48e0fd4d090"


def job(status: str, node: str | None = NODE) -> str:
    details = {"submission_id": "a", "job_id": None, "status": status, "entrypoint": "python a.py", "metadata": None}
    return json.dumps({**details, "driver_node_id": node})


def serve_log(serve: Callable[..., str], statuses: list[Answer], logs: list[Answer]) -> tuple[str, list[int]]:
    """Serve a job's statuses and logs in turn, repeating the last ones; return address and requested `skip_lines`."""
    skipped = []

    def answer(method: str, path: str) -> Answer:
        if path.startswith("/platform/jobs/a/log"):
            skipped.append(int(path.partition("skip_lines=")[2]))
            return logs.pop(0) if len(logs) > 1 else logs[0]
        return statuses.pop(0) if len(statuses) > 1 else statuses[0]

    return serve(answer), skipped


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlplatform.client.connection.POLL_SECONDS", 0.05)


def test_log_is_followed_line_by_line(serve: Callable[..., str]) -> None:
    statuses = [(200, job("PENDING", None)), (200, job("RUNNING")), (200, job("SUCCEEDED"))]
    logs = [(200, "one\ntwo\n"), (200, "three without end")]
    address, skipped = serve_log(serve, statuses, logs)
    with Jobs(Settings.load(ray_address=address)) as jobs:
        assert list(jobs.follow("a")) == ["one", "two", "three without end"]
    assert skipped == [0, 2]


def test_follower_counts_omitted_lines_of_long_log(serve: Callable[..., str]) -> None:
    running = (200, job("RUNNING"))
    omitted = "mlplatform: 12.0 MiB of this log (98 lines) were omitted here."
    address, skipped = serve_log(
        serve, [running, running, (200, job("SUCCEEDED"))], [(200, f"one\n{omitted}\n100\n"), (200, "101\n")]
    )
    with Jobs(Settings.load(ray_address=address)) as jobs:
        assert list(jobs.follow("a")) == ["one", omitted, "100", "101"]
    assert skipped == [0, 100]


def test_brief_gateway_outage_loses_no_log_lines(serve: Callable[..., str]) -> None:
    running = (200, job("RUNNING"))
    unavailable = [(404, "Job a does not exist"), (500, "")]
    statuses = [running, running, *unavailable, running, running, (200, job("SUCCEEDED"))]
    logs = [(200, "one\n"), (500, ""), (503, "try again\n"), (200, "two\n")]
    address, skipped = serve_log(serve, statuses, logs)
    with Jobs(Settings.load(ray_address=address)) as jobs:
        assert list(jobs.follow("a")) == ["one", "two"]
    assert skipped == [0, 1, 1, 1]


def test_job_without_output_has_empty_log(serve: Callable[..., str]) -> None:
    address, _ = serve_log(serve, [(200, job("FAILED", None))], [(200, "")])
    with Jobs(Settings.load(ray_address=address)) as jobs:
        assert list(jobs.follow("a")) == []


def test_reports_are_yielded_from_log(serve: Callable[..., str]) -> None:
    log = 'start\nmlplatform report {"step": 0}\nother\nmlplatform report {"step": 1}\n'
    address, _ = serve_log(serve, [(200, job("SUCCEEDED"))], [(200, log)])
    with Jobs(Settings.load(ray_address=address)) as jobs:
        assert list(jobs.reports("a")) == [{"step": 0}, {"step": 1}]


def test_address_without_gateway_is_named(serve: Callable[..., str]) -> None:
    address = serve(lambda *_: (404, "404: Not Found"))
    with (
        Jobs(Settings.load(ray_address=address)) as jobs,
        pytest.raises(JobError, match=f"{address} is not the platform's gateway; set RAY_ADDRESS"),
    ):
        jobs.attempts("a")


def test_status_422_raises_capacity_error(serve: Callable[..., str], tmp_path: Path) -> None:
    address = serve(lambda method, _: (422, "The entry point asks for 4 GPUs.") if method == "POST" else (200, ""))
    with Jobs(Settings.load(ray_address=address)) as jobs, pytest.raises(CapacityError, match="asks for 4 GPUs"):
        jobs.submit("true", tmp_path)


def test_error_responses_are_not_log_lines(serve: Callable[..., str]) -> None:
    logs, asked = [(503, "try again\n"), (200, "one\ntwo\n")], []

    def answer(method: str, path: str) -> Answer:
        if not path.startswith("/platform/jobs/a/log"):
            return 200, job("SUCCEEDED")
        asked.append(path.partition("skip_lines=")[2])
        return logs.pop(0)

    with Jobs(Settings.load(ray_address=serve(answer))) as jobs:
        assert list(jobs.follow("a")) == ["one", "two"]
    assert asked == ["0", "0"]


@pytest.mark.parametrize("name", ["digits", "größe", ".hidden", "--", "損失", "a" * 500, "a b/c"])
def test_generated_id_is_valid_for_any_job_name(name: str) -> None:
    assert re.fullmatch(ID, new_id(name))


@pytest.mark.parametrize("ask", [lambda jobs: jobs.wait("a"), lambda jobs: list(jobs.follow("a"))])
def test_client_retries_while_gateway_database_is_unavailable(
    ask: Callable[[Jobs], object], serve: Callable[..., str]
) -> None:
    answers = [(503, "The gateway's database does not answer; try again."), (200, job("SUCCEEDED", None))]
    address, _ = serve_log(serve, answers, [(200, "")])
    with Jobs(Settings.load(ray_address=address)) as jobs:
        ask(jobs)


@pytest.mark.parametrize(("answer", "expected"), [({"driver_exit_code": 3}, 3), ({}, None)])
def test_job_has_exit_code_of_entry_point(
    answer: dict[str, int], expected: int | None, serve: Callable[..., str]
) -> None:
    details = {"submission_id": "t", "status": "FAILED", "entrypoint": "true", **answer}
    with Jobs(Settings.load(ray_address=serve(lambda method, path: (200, json.dumps(details))))) as jobs:
        assert jobs.get("t").exit_code == expected


def test_unknown_job_fails_at_once(serve: Callable[..., str]) -> None:
    with (
        Jobs(Settings.load(ray_address=serve(lambda *_: (404, "no")))) as jobs,
        pytest.raises(JobError, match="There is no job 'a'"),
    ):
        jobs.wait("a")


def test_wait_times_out(serve: Callable[..., str]) -> None:
    with (
        Jobs(Settings.load(ray_address=serve(lambda method, path: (200, job("RUNNING"))))) as jobs,
        pytest.raises(JobError, match="Job a is still RUNNING after 0 s"),
    ):
        jobs.wait("a", timeout_s=0)


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
def test_jobs_are_filtered_and_listed_latest_first(
    wanted: dict[str, Any], found: list[str], serve: Callable[..., str]
) -> None:
    with Jobs(Settings.load(ray_address=serve(lambda *_: (200, json.dumps(LISTED))))) as jobs:
        assert [known.id for known in jobs.list(**wanted)] == found
        with pytest.raises(JobError, match="Invalid state 'DONE': use one of PENDING, "):
            jobs.list(state="DONE")


def test_only_ended_known_jobs_are_deleted(serve: Callable[..., str]) -> None:
    answers = {
        "/api/jobs/a": (200, "{}"),
        "/api/jobs/b": (500, "it is in a non-terminal state RUNNING; stop it first."),
    }

    def answer(method: str, path: str) -> Answer:
        assert method == "DELETE"
        return answers.get(path, (404, "no"))

    with Jobs(Settings.load(ray_address=serve(answer))) as jobs:
        jobs.delete("a")
        with pytest.raises(JobError, match="non-terminal state RUNNING; stop it first"):
            jobs.delete("b")
        with pytest.raises(JobError, match="There is no job 'c'"):
            jobs.delete("c")


def test_submitting_small_folder_takes_two_requests(serve: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    seen = []

    def answer(method: str, path: str) -> Answer:
        seen.append((method, path))
        return 200, json.dumps({"submission_id": "given"})

    with Jobs(Settings.load(ray_address=serve(answer), driver_label="role=worker")) as jobs:
        assert jobs.submit(["python", "a b.py"], tmp_path) == "given"
    package = seen[0][1]
    assert package.startswith("/api/packages/gcs/_ray_pkg_")
    assert seen == [("PUT", package), ("POST", "/api/jobs/")]


def test_folder_is_uploaded_with_each_job(serve: Callable[..., str], tmp_path: Path) -> None:
    seen = []

    def answer(method: str, path: str) -> Answer:
        seen.append(method)
        return 200, json.dumps({"submission_id": "given"})

    with Jobs(Settings.load(ray_address=serve(answer))) as jobs:
        jobs.submit("true", tmp_path)
        jobs.submit("true", tmp_path)  # the gateway compares the content: a name says nothing about it
    assert seen == ["PUT", "POST"] * 2


def test_infeasible_job_is_rejected_before_upload(serve: Callable[..., str], tmp_path: Path) -> None:
    sentence = "One worker asks for 1 CPU and 2 GPUs; no node has more than 1 GPU (ray-worker-0: 4 CPUs and 1 GPU)."
    seen = []

    def answer(method: str, path: str) -> Answer:
        seen.append((method, path))
        return 422, sentence

    with Jobs(Settings.load(ray_address=serve(answer))) as jobs, pytest.raises(CapacityError) as error:
        jobs.submit("true", tmp_path, workers=WorkerGroup(2, gpus=2))
    assert str(error.value) == sentence
    assert seen == [("POST", "/platform/capacity")]


def test_shortage_is_returned_and_job_is_submitted(serve: Callable[..., str], tmp_path: Path) -> None:
    shortage = {"missing": "1 GPU", "users": ["a", "b"], "unavailable": ["ray-worker-1"]}
    answers = {"/platform/capacity": {"shortage": shortage}, "/api/jobs/": {"submission_id": "given"}}
    waits: list[Shortage] = []
    with Jobs(Settings.load(ray_address=serve(lambda _, path: (200, json.dumps(answers.get(path)))))) as jobs:
        assert jobs.submit("true", tmp_path, resources=Resources(gpus=1), on_wait=waits.append) == "given"
    assert waits == [Shortage("1 GPU", ("a", "b"), ("ray-worker-1",))]


def test_path_that_older_gateway_lacks_is_named_before_upload(
    serve: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlplatform.client.connection.GATEWAY_HEADER", "Content-Length")
    seen = []

    def answer(method: str, path: str) -> Answer:
        seen.append((method, path))
        return 404, "404: Not Found"

    address = serve(answer)
    lacks = f"{address} has version 14 and lacks /platform/capacity; upgrade it with `make up`"
    with Jobs(Settings.load(ray_address=address)) as jobs, pytest.raises(JobError, match=lacks):
        jobs.submit("true", tmp_path, resources=Resources(gpus=4))
    assert seen == [("POST", "/platform/capacity")]


def test_job_with_resources_is_not_uploaded_unchecked(serve: Callable[..., str], tmp_path: Path) -> None:
    """A head of Ray without a gateway would let an infeasible job wait indefinitely."""
    seen = []

    def answer(method: str, path: str) -> Answer:
        seen.append((method, path))
        return 404, "404: Not Found"

    address = serve(answer)
    with (
        Jobs(Settings.load(ray_address=address)) as jobs,
        pytest.raises(JobError, match=f"{address} is not the platform's gateway; set RAY_ADDRESS"),
    ):
        jobs.submit("true", tmp_path, resources=Resources(gpus=1))
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


def test_unreachable_address_is_named(closed_port: int) -> None:
    address = f"http://127.0.0.1:{closed_port}"
    with Jobs(Settings.load(ray_address=address)) as jobs, pytest.raises(UnreachableError) as error:
        jobs.list()
    assert address in str(error.value)
    assert "RAY_ADDRESS" in str(error.value)


@pytest.mark.parametrize("address", ["127.0.0.1:6379", "ray-head:6379", "ray://ray-head:10001"])
def test_address_of_another_protocol_is_named(address: str) -> None:
    with pytest.raises(SettingsError, match=f"RAY_ADDRESS='{address}' does not begin with http://"):
        Jobs(Settings.load(ray_address=address))


def test_missing_folder_is_rejected_before_any_request(tmp_path: Path) -> None:
    with Jobs(Settings.load()) as jobs, pytest.raises(JobError, match=r"There is no folder .*/none"):
        jobs.submit("python a.py", tmp_path / "none")


def test_last_line_of_ray_error_is_reported(serve: Callable[..., str], tmp_path: Path) -> None:
    address = serve(lambda method, path: (500, "Traceback\n  file\nValueError: id taken"))
    with (
        Jobs(Settings.load(ray_address=address)) as jobs,
        pytest.raises(JobError, match=r"rejected the request \(500\): ValueError: id taken"),
    ):
        jobs.get("a")


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
