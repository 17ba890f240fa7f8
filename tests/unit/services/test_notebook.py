"""JupyterLab of a person: what counts as use of it, and the server that has its port while it sleeps."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from mlplatform.services.notebook import Idleness, Sleep, Use, cpu_seconds, use_of

PAGE = {"Accept": "text/html,application/xhtml+xml"}


def unused(*looks: Use, every_s: float = 10) -> list[float]:
    """Seconds without use after each look."""
    idleness = Idleness()
    return [idleness.seconds(look, 1000 + number * every_s) for number, look in enumerate(looks)]


def waits(last: float = 0.0, **cpu_s: float) -> Use:
    return Use(False, last, {int(name[1:]): seconds for name, seconds in cpu_s.items()})


def test_time_counts_from_first_look() -> None:
    assert unused(waits(), waits(), waits()) == [0, 10, 20]


def test_busy_kernel_is_never_idle() -> None:
    assert unused(waits(), waits(), Use(True, 0.0, {}), waits()) == [0, 10, 0, 10]


def test_activity_of_kernel_or_terminal_restarts_time() -> None:
    assert unused(waits(), waits(1004), waits(1004)) == [0, 6, 16]
    assert unused(waits(), waits(5000)) == [0, 0], "a clock that is ahead keeps it awake for longer"


def test_silent_program_that_computes_is_not_idle() -> None:
    assert unused(waits(p7=100), waits(p7=101), waits(p7=101.1), waits(p7=101.2)) == [0, 0, 10, 20]
    assert unused(waits(), waits(p8=5), waits(p8=5)) == [0, 0, 10], "a new program"
    assert unused(waits(p7=100), waits(), waits()) == [0, 10, 20], "the end of a program"


@pytest.fixture
def sleep() -> Iterator[tuple[str, threading.Thread]]:
    """A server in the place of JupyterLab: its address, and the thread that waits for a visit."""
    server = Sleep(0)
    address = f"http://127.0.0.1:{server.server_address[1]}"
    waiting = threading.Thread(target=server.wait)
    waiting.start()
    yield address, waiting
    if waiting.is_alive():
        httpx.get(address, headers=PAGE)
        waiting.join()


def test_sleep_answers_health_checks_and_refuses_open_pages(sleep: tuple[str, threading.Thread]) -> None:
    address, waiting = sleep
    assert httpx.get(f"{address}/api").status_code == 200
    for path in ("/api/kernels?1", "/api/terminals", "/lab/tree/a.ipynb", "/static/lab.js"):
        refused = httpx.get(address + path, headers={"Accept": "*/*"})
        assert refused.status_code == 503, path
    assert "reload the page to start it" in refused.text
    assert httpx.put(f"{address}/api/contents/a", json={}).status_code == 501
    assert waiting.is_alive(), "a page that was left open has started JupyterLab"


def test_visit_of_page_ends_sleep_and_frees_port(
    sleep: tuple[str, threading.Thread], capfd: pytest.CaptureFixture[str]
) -> None:
    address, waiting = sleep
    page = httpx.get(f"{address}/lab?token=secret", headers=PAGE)
    assert page.status_code == 200
    assert "location.reload()" in page.text
    waiting.join(10)
    assert not waiting.is_alive()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{address}/api")
    assert "secret" not in "".join(capfd.readouterr())


def test_use_is_read_from_kernels_and_terminals(serve: Callable[[Callable[[str, str], tuple[int, str]]], str]) -> None:
    answers = {
        "/api/kernels": [{"execution_state": "idle", "last_activity": "1970-01-01T00:01:40.500000Z"}],
        "/api/terminals": [{"name": "1", "last_activity": "1970-01-01T00:03:20.000000Z"}],
    }
    status = 200

    def answer(_: str, path: str) -> tuple[int, str]:
        return status, json.dumps(answers[path])

    with httpx.Client(base_url=serve(answer)) as client:
        assert use_of(client, {7: 1.0}) == Use(False, 200.0, {7: 1.0})
        answers["/api/kernels"][0]["execution_state"] = "busy"
        assert use_of(client, {}) == Use(True, 200.0, {})
        answers |= {"/api/kernels": [], "/api/terminals": []}
        assert use_of(client, {}) == Use(False, 0.0, {})
        status = 503
        assert use_of(client, {}) is None, "JupyterLab starts, and would be ended"


def test_cpu_time_of_each_program_is_read(tmp_path: Path) -> None:
    for pid, name in ((1, "init"), (7, "a) b ("), (8, "python")):
        (tmp_path / str(pid)).mkdir()
        fields = ["S", *["0"] * 10, "100", "20", "30", "50", *["0"] * 20]
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
    (tmp_path / "uptime").touch()
    (tmp_path / "9").mkdir()  # has ended meanwhile
    assert cpu_seconds({1, 8}, tmp_path) == {7: 2.0}


def test_program_refuses_to_run_outside_of_container(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mlplatform.services.notebook", "2h", str(tmp_path)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "must be the only one of a container" in refused.stderr
