"""Reports of runs to the gateway: repeated while it is unavailable, and never waited for."""

import threading
import time
from collections.abc import Iterator

import pytest
from command_line import Serve
from waiting import wait_for

from mlplatform.settings import job
from mlplatform.tracking import outbox, reported_runs

TOKEN = "token"
RUN, OTHER = "a" * 32, "b" * 32
BOUND_S = 30


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(outbox, "_RETRY_SECONDS", 0.05)
    yield
    job.settings.cache_clear()
    reported_runs._outbox.cache_clear()


def in_job(monkeypatch: pytest.MonkeyPatch, gateway: str, token: str = TOKEN) -> None:
    monkeypatch.setenv("MLPLATFORM_GATEWAY", gateway)
    monkeypatch.setenv("MLPLATFORM_ATTEMPT_TOKEN", token)
    job.settings.cache_clear()
    reported_runs._outbox.cache_clear()


def test_report_is_repeated_until_the_gateway_answers(monkeypatch: pytest.MonkeyPatch, serve: Serve) -> None:
    asked: list[str] = []

    def answer(method: str, path: str) -> tuple[int, str]:
        asked.append(f"{method} {path}")
        return (503, "starting") if len(asked) < 3 else (200, "{}")

    in_job(monkeypatch, serve(answer))
    reported_runs.report(RUN)
    reported_runs.report(OTHER, own=True)
    first, second = (f"PUT /platform/attempt/runs/{RUN}?own=0", f"PUT /platform/attempt/runs/{OTHER}?own=1")
    wait_for(lambda: second in asked, "the second report", BOUND_S)
    assert asked[:3] == [first] * 3


def test_report_does_not_wait_for_a_silent_gateway(monkeypatch: pytest.MonkeyPatch, serve: Serve) -> None:
    go, asked = threading.Event(), []

    def answer(method: str, path: str) -> tuple[int, str]:
        asked.append(path)
        go.wait(BOUND_S)
        return 200, "{}"

    in_job(monkeypatch, serve(answer))
    began = time.monotonic()
    for _ in range(100):
        reported_runs.report(RUN)
    assert time.monotonic() - began < 1
    go.set()
    wait_for(lambda: len(asked) == 100, "all reports", BOUND_S)


def test_refused_report_is_dropped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []

    def answer(method: str, path: str) -> tuple[int, str]:
        asked.append(path)
        return (403, "It belongs to another job.") if RUN in path else (200, "{}")

    in_job(monkeypatch, serve(answer))
    reported_runs.report(RUN)
    reported_runs.report(OTHER)
    wait_for(lambda: any(OTHER in path for path in asked), "the other report", BOUND_S)
    assert [path for path in asked if RUN in path] == asked[:1]
    assert f"The gateway does not record the run {RUN}" in caplog.text


def test_process_outside_of_jobs_reports_nothing(monkeypatch: pytest.MonkeyPatch, serve: Serve) -> None:
    in_job(monkeypatch, serve(lambda method, path: (200, "{}")), token="")
    reported_runs.report(RUN)
    assert reported_runs._outbox.cache_info().currsize == 0
