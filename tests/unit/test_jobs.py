"""The client of the Jobs API against servers that answer as Ray's does; tests/embedded has the real one."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mlplatform.errors import AccessError, JobError, SettingsError, UnreachableError
from mlplatform.jobs import Jobs, report_in
from mlplatform.settings import Settings


def job(status: str) -> str:
    details = {"submission_id": "a", "job_id": None, "status": status, "entrypoint": "python a.py", "metadata": None}
    return json.dumps(details)


def test_the_log_is_followed_line_by_line_to_its_end(serve: Callable[..., str]) -> None:
    logs = iter(["one\ntw", "one\ntwo\n", "one\ntwo\nthree without end"])
    statuses = iter(["PENDING", "RUNNING", "SUCCEEDED"])

    def answer(method: str, path: str) -> tuple[int, str]:
        return 200, json.dumps({"logs": next(logs)}) if path.endswith("/logs") else job(next(statuses))

    with Jobs(Settings.load(ray_address=serve(answer))) as jobs:
        assert list(jobs.follow("a")) == ["one", "two", "three without end"]


def test_waiting_has_a_bound(serve: Callable[..., str]) -> None:
    with (
        Jobs(Settings.load(ray_address=serve(lambda method, path: (200, job("RUNNING"))))) as jobs,
        pytest.raises(JobError, match="Job a is still RUNNING after 0 s"),
    ):
        jobs.wait("a", timeout_s=0)


def test_the_entry_point_goes_where_the_settings_say(serve: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    seen = []

    def answer(method: str, path: str) -> tuple[int, str]:
        seen.append((method, path))
        return (404, "") if method == "GET" else (200, json.dumps({"submission_id": "given"}))

    with Jobs(Settings.load(ray_address=serve(answer), driver_label="role=worker")) as jobs:
        assert jobs.submit(["python", "a b.py"], tmp_path) == "given"
    package = seen[0][1]
    assert package.startswith("/api/packages/gcs/_ray_pkg_")
    assert seen == [("GET", package), ("PUT", package), ("POST", "/api/jobs/")]


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_token_is_named_by_its_file(status: int, serve: Callable[..., str], tmp_path: Path) -> None:
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


def test_a_token_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"RAY_AUTH_TOKEN_PATH='.*missing' cannot be read"):
        Jobs(Settings.load(ray_auth_token_path=tmp_path / "missing"))


@pytest.mark.parametrize("address", ["http://127.0.0.1:{port}", "127.0.0.1:{port}", "ray-head:6379"])
def test_an_address_where_nothing_answers_is_named(address: str, closed_port: int) -> None:
    address = address.format(port=closed_port)
    with Jobs(Settings.load(ray_address=address)) as jobs, pytest.raises(UnreachableError) as error:
        jobs.list()
    assert address in str(error.value)
    assert "RAY_ADDRESS" in str(error.value)


def test_a_missing_folder_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    with Jobs(Settings.load()) as jobs, pytest.raises(JobError, match=r"There is no folder .*/none"):
        jobs.submit("python a.py", tmp_path / "none")


def test_rays_refusal_is_passed_on_in_its_last_line(serve: Callable[..., str], tmp_path: Path) -> None:
    address = serve(lambda method, path: (500, "Traceback\n  file\nValueError: id taken"))
    with (
        Jobs(Settings.load(ray_address=address)) as jobs,
        pytest.raises(JobError, match=r"refuses the request \(500\): ValueError: id taken"),
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
def test_reports_are_read_from_a_jobs_log(line: str, report: dict[str, float] | None) -> None:
    assert report_in(line) == report
