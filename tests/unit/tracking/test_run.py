import signal
import socket
import threading
from pathlib import Path

import pytest
from command_line import Serve

from mlplatform.errors import AccessError, UnreachableError
from mlplatform.settings.environment import changed_environment, environment
from mlplatform.tracking import ending, identity, server
from mlplatform.tracking import run as tracking_run
from mlplatform.tracking.system_metrics import gpu_report


def test_job_without_tracking_address_reports_it_is_untracked(capsys: pytest.CaptureFixture[str]) -> None:
    server.report_untracked.cache_clear()
    with tracking_run.job_run(params={"lr": 1}) as run:
        assert run is None
        assert tracking_run.process_run() is None
    printed = capsys.readouterr().err
    assert printed.strip() == server.NOT_TRACKED
    assert "MLFLOW_TRACKING_URI" in printed


def _within_ray() -> SystemExit:
    """Return the error that Ray raises if a signal handler exits while Ray waits for a result."""
    error = SystemExit(1)
    error.ray_terminate_msg = "SystemExit is raised (sys.exit is called). Exit code: 15."  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (KeyboardInterrupt(), "KILLED"),
        (SystemExit(128 + signal.SIGTERM), "KILLED"),
        (SystemExit(int(signal.SIGTERM)), "KILLED"),
        (_within_ray(), "KILLED"),
        (SystemExit(0), "FINISHED"),
        (SystemExit(None), "FINISHED"),
        (SystemExit("no data"), "FAILED"),
        (ValueError("no data"), "FAILED"),
    ],
)
def test_run_status_follows_from_job_error(error: BaseException, status: str) -> None:
    assert ending.status_after(error) == status


def test_unreachable_server_is_named_at_once(closed_port: int) -> None:
    address = f"http://127.0.0.1:{closed_port}"
    with pytest.raises(UnreachableError, match=f"MLflow at {address} .* does not answer"):
        server.check(address)


def test_late_answer_is_awaited_for_its_own_time(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = threading.Event()

    def answer(method: str, path: str) -> tuple[int, str]:
        hanging.wait(0.3)
        return 200, "{}"

    address = serve(answer)
    monkeypatch.setattr(server, "_CONNECT_SECONDS", 0.1)
    server.check(address)
    monkeypatch.setattr(server, "_ANSWER_SECONDS", 0.1)
    with pytest.raises(UnreachableError, match=f"MLflow at {address} .* does not answer"):
        server.check(address)
    hanging.set()


@pytest.mark.parametrize(("status", "kind"), [(401, AccessError), (403, AccessError), (404, UnreachableError)])
def test_rejection_is_distinguished_from_wrong_address(status: int, kind: type[Exception], serve: Serve) -> None:
    address = serve(lambda method, path: (status, "no"))
    with pytest.raises(kind, match=str(status)):
        server.check(address)


def test_probe_accepts_server_with_plugin_authentication(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_AUTH", "company-sso")
    server.check(serve(lambda method, path: (401, "no")))


def test_database_needs_no_check() -> None:
    server.check("sqlite:///runs.db")


@pytest.mark.parametrize(
    ("variables", "ranks"),
    [
        ({}, (0, 0)),
        ({"RANK": "5", "LOCAL_RANK": "1", "GROUP_RANK": "2"}, (5, 1)),
        ({"LOCAL_RANK": "1"}, (1, 1)),
        ({"LOCAL_RANK": "0", "NODE_RANK": "0"}, (0, 0)),
        ({"LOCAL_RANK": "0", "NODE_RANK": "1"}, (1, 0)),
        ({"LOCAL_RANK": "1", "NODE_RANK": "2", "LOCAL_WORLD_SIZE": "4"}, (9, 1)),
        ({"SLURM_PROCID": "3", "SLURM_LOCALID": "1"}, (3, 1)),
        ({"SLURM_PROCID": "3", "RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"}, (0, 0)),
        ({"RANK": "first"}, (0, 0)),
    ],
)
def test_process_rank_is_read_from_launcher(
    variables: dict[str, str], ranks: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "LOCAL_WORLD_SIZE", "SLURM_PROCID", "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert identity.process_ranks() == ranks


def test_changed_environment_is_always_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_RUN_ID", "before")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_ID", raising=False)
    with changed_environment({"MLFLOW_RUN_ID": None, "MLFLOW_EXPERIMENT_ID": "1"}):
        assert environment().get("MLFLOW_RUN_ID") is None
        monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", "2")
    assert environment()["MLFLOW_RUN_ID"] == "before"
    assert "MLFLOW_EXPERIMENT_ID" not in environment()


def gpu_tool(folder: Path, name: str, end: int = 0) -> None:
    """Write a program that prints what a vendor's tool would, and ends with an exit code."""
    (folder / name).write_text(f"#!/bin/sh\necho 'table of {name}'\nexit {end}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize("name", ["nvidia-smi", "rocm-smi"])
def test_gpu_info_is_output_of_vendors_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    gpu_tool(tmp_path, name)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_report() == f"table of {name}\n"


def test_gpu_info_names_node_without_usable_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_tool(tmp_path, "nvidia-smi", end=9)  # as without the driver
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_report() == f"Node {socket.gethostname()} has no GPU that nvidia-smi or rocm-smi reports.\n"
