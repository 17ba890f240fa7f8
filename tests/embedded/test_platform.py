"""The embedded platform itself: ports, rejected requests, and a shutdown without leftovers."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest
from command_line import mlplatform
from embedded import JOBS, command, instance_of, listening, processes
from waiting import wait_for

from mlplatform.client.jobs import Jobs
from mlplatform.errors import AccessError, HostError
from mlplatform.local.platform import LocalPlatform
from mlplatform.local.processes import LOOPBACK, is_running
from mlplatform.settings.job import Settings


def test_every_port_is_on_loopback(local: LocalPlatform, reached: Settings) -> None:
    addresses = listening(processes(local))
    assert {address for address, _ in addresses} == {LOOPBACK}
    for known in (reached.ray_address, str(reached.tracking_uri)):
        assert (LOOPBACK, httpx.URL(known).port) in addresses


def test_up_is_idempotent(local: LocalPlatform, reached: Settings) -> None:
    before = {process.pid for process in processes(local)}
    assert local.up() == reached
    recorded = {process.pid for process in instance_of(local).processes}
    assert before & {process.pid for process in processes(local)} >= recorded


def test_secrets_are_not_in_command_lines_or_environments(local: LocalPlatform, reached: Settings) -> None:
    assert reached.ray_auth_token_path
    token = reached.ray_auth_token_path.read_text()
    for process in processes(local):
        assert token not in command(process)
        with suppress(psutil.NoSuchProcess):
            assert token not in str(process.environ())


@pytest.mark.parametrize("token", [None, "0" * 64])
def test_ray_rejects_requests_without_token(token: str | None, reached: Settings, tmp_path: Path) -> None:
    path = None
    if token:
        path = tmp_path / "token"
        path.write_text(token)
    stranger = Settings.load(ray_address=reached.ray_address, ray_auth_token_path=path)
    with Jobs(stranger) as jobs, pytest.raises(AccessError, match="RAY_AUTH_TOKEN_PATH"):
        jobs.submit("id", JOBS)


def test_mlflow_page_opens_on_training(reached: Settings) -> None:
    assert reached.tracking_password_file
    account = ("local", reached.tracking_password_file.read_text())
    with httpx.Client(base_url=str(reached.tracking_uri), auth=account) as mlflow:
        first = mlflow.get("/", headers={"Accept": "text/html"})
        assert first.headers["Cache-Control"] == "no-store"
        assert '"mlflow.workflowType_v1": "machine_learning"' in first.text
        (query,) = re.findall(r"location.replace\(`(\?\w+)\$", first.text)
        opened = mlflow.get(f"/{query}", headers={"Accept": "text/html"}).text
        assert opened == mlflow.get("/").text
        (script,) = re.findall(r'<script defer="defer" src="([^"]+)">', opened)
        assert mlflow.get(f"/{script}").is_success


@pytest.mark.nightly
def test_ray_is_restarted_after_failure_of_its_agent(local: LocalPlatform, reached: Settings) -> None:
    raylet, agent = (
        next(process for process in processes(local) if name in command(process))
        for name in ("raylet/raylet", "ray::RuntimeEnvAgent")
    )
    agent.kill()
    wait_for(lambda: not is_running(raylet), "the end of the node", 60)
    with Jobs(reached) as jobs:
        job_id = jobs.submit(["python", "-c", "print('restarted')"], JOBS, name="after-agent")
        assert jobs.wait(job_id, timeout_s=180).status == "SUCCEEDED"


def test_submit_exits_nonzero_and_shows_job_error(reached: Settings, tmp_path: Path) -> None:
    (tmp_path / "fail.py").write_text("raise SystemExit('the data is missing')\n")
    done = mlplatform("submit", str(tmp_path / "fail.py"), **reached.environment())
    assert done.returncode == 3
    assert "the data is missing" in done.stdout
    assert "ended FAILED" in done.stderr
    assert "Traceback" not in done.stderr


def test_silent_program_is_named_with_end_of_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    monkeypatch.setattr("mlplatform.local.platform._START_SECONDS", 0)
    with pytest.raises(HostError, match=r"^mlflow does not answer after 0 s; its log is .*mlflow\.log and ends with: "):
        LocalPlatform(home).up()
    left = [line for process in psutil.process_iter() if str(home) in (line := command(process))]
    assert not left, "MLflow still runs"


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The demo in its own folder, at the same time as the tests' platform."""
    command = [sys.executable, "-m", "mlplatform", "local", "demo", str(JOBS / "digits.py")]
    env = {**os.environ, "MLPLATFORM_HOME": str(tmp_path / "home")}
    process = subprocess.Popen(command, env=env, stdout=-1, stderr=subprocess.STDOUT, text=True)
    yield process
    process.kill()
    process.communicate()
    LocalPlatform(tmp_path / "home").down()


@pytest.mark.nightly
def test_ctrl_c_leaves_no_processes_or_ports(demo: subprocess.Popen[str], tmp_path: Path) -> None:
    assert demo.stdout
    wait_for(lambda: "Submitted" in demo.stdout.readline(), "the demo to submit its job")
    members = processes(LocalPlatform(tmp_path / "home"))
    ports = {port for _, port in listening(members)}
    assert len(members) > 5
    assert ports
    demo.send_signal(signal.SIGINT)
    output, _ = demo.communicate(timeout=60)
    assert demo.returncode == 130, output
    assert not [process for process in members if is_running(process)]
    left = {c.laddr.port for c in psutil.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    assert not ports & left
    assert not (tmp_path / "home" / "state.json").exists()
    assert "Traceback" not in output
