"""Trackers other than MLflow: keys, folders, run ids and messages."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mlplatform.errors import AccessError, SettingsError
from mlplatform.settings.environment import environment
from mlplatform.settings.job import Settings
from mlplatform.tracking import server
from mlplatform.tracking.other_trackers import tracker
from mlplatform_stack.secrets_folder import FILES

pytestmark = pytest.mark.usefixtures("clean_environment")

VARIABLES = [
    *("WANDB_MODE", "WANDB_DIR", "WANDB_RUN_ID", "WANDB_NAME", "WANDB_RESUME", "WANDB_API_KEY"),
    *("WANDB_ERROR_REPORTING", "COMET_START_ONLINE", "COMET_OFFLINE_DIRECTORY", "COMET_EXPERIMENT_KEY"),
    *("COMET_START_EXPERIMENT_NAME", "COMET_API_KEY", "COMET_ERROR_TRACKING_ENABLE"),
]
KEY = "0123456789" * 4


@pytest.fixture(autouse=True)
def a_jobs_worker(clean_environment: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Make this process a worker of job `digits-7` with the key files of `make env`; return the shared folder."""
    for variable in VARIABLES:
        monkeypatch.setenv(variable, "")  # restored after the test
        monkeypatch.delenv(variable)
    FILES["wandb_netrc"](tmp_path / "netrc")
    FILES["comet_config"](tmp_path / "comet.config")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("COMET_CONFIG", str(tmp_path / "comet.config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = Settings.load(job_id="digits-7", shared=tmp_path / "shared")
    monkeypatch.setattr("mlplatform.tracking.other_trackers.settings", lambda: settings)
    return tmp_path / "shared"


def fill_in(path: Path) -> None:
    """Fill in a key file as its comments instruct."""
    first, *lines = path.read_text().splitlines()
    assert first.startswith("# Remove the '#'")
    path.write_text("\n".join(line.removeprefix("# ").replace("KEY", KEY) for line in lines))


def test_wandb_without_key_is_offline_under_job_id(a_jobs_worker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tracker("wandb")
    assert (place.folder, place.id, place.online) == (a_jobs_worker / "wandb", "digits-7", False)
    found = environment()
    assert (found["WANDB_MODE"], found["WANDB_RUN_ID"], found["WANDB_RESUME"]) == ("offline", "digits-7", "allow")
    assert found["WANDB_DIR"] == str(place.folder)
    assert f"wandb sync {place.folder}/wandb/offline-run-*-digits-7" in capsys.readouterr().out


def test_comet_without_key_is_offline_under_derived_id(a_jobs_worker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place, again, other = tracker("comet"), tracker("comet"), tracker("comet", name="second")
    assert place.id == again.id != other.id
    assert 32 <= len(str(place.id)) <= 50
    assert str(place.id).isalnum()
    assert not place.online
    assert environment()["COMET_EXPERIMENT_KEY"] == other.id, "the environment does not name the latest run"
    assert environment()["COMET_OFFLINE_DIRECTORY"] == str(a_jobs_worker / "comet")
    assert f"comet upload {place.folder}/{place.id}*.zip" in capsys.readouterr().out


def test_each_run_of_process_has_its_own_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_NAME", "the job's own")
    for name in ("a", "b", "a"):
        assert tracker("wandb", name).id == environment()["WANDB_RUN_ID"] == f"digits-7-{name}"
        assert environment()["WANDB_NAME"] == "the job's own"


def test_second_run_updates_initialized_wandb_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    from wandb.sdk import wandb_setup

    monkeypatch.setattr(wandb_setup, "_singleton", None)  # keeps this test's singleton from others
    tracker("wandb", "a")
    session = wandb_setup.singleton()
    assert session.settings.run_id == "digits-7-a"
    tracker("wandb", "b")
    assert (session.settings.run_id, session.settings.run_name) == ("digits-7-b", "digits-7-b")
    assert not session.did_environment_change(), "W&B would warn that it ignores a changed variable"


def test_child_process_has_its_own_run(a_jobs_worker: Path) -> None:
    tracker("wandb", "parent")
    code = "from mlplatform.tracking import other_trackers; other_trackers.tracker('wandb', 'child')"
    code += "; print(other_trackers.environment()['WANDB_RUN_ID'])"
    variables = {**environment(), "MLPLATFORM_JOB_ID": "digits-7", "MLPLATFORM_SHARED": str(a_jobs_worker)}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "digits-7-child"


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        # It asks the server, and the key holds for this process, although its file, a secret, cannot be written.
        (["wandb.login(key=KEY)", "tracker('wandb').online"], [True, True]),
        (["tracker('wandb').online", "wandb.login(key=KEY)"], [False, False]),
    ],
    ids=["login first", "tracker first"],
)
def test_login_by_key_in_training_function_comes_before_tracker(
    a_jobs_worker: Path, calls: list[str], expected: list[bool]
) -> None:
    with serving_wandb() as (address, keys):
        code = "import json, wandb; from mlplatform.tracking.other_trackers import tracker; "
        code += f"KEY = {KEY!r}; print(json.dumps([{', '.join(calls)}]))"
        variables = {**environment(), "WANDB_BASE_URL": address, "NETRC": "/proc/version"}
        variables |= {"MLPLATFORM_JOB_ID": "digits-7", "MLPLATFORM_SHARED": str(a_jobs_worker)}
        done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == expected
    assert set(keys) == ({f"api:{KEY}"} if expected[0] else set())


@contextmanager
def serving_wandb() -> Iterator[tuple[str, list[str]]]:
    """A server that accepts every key, as W&B's answers the question whose it is; yields the keys that it received."""
    keys: list[str] = []

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            if (given := self.headers.get("Authorization", "")).startswith("Basic "):
                keys.append(base64.b64decode(given.removeprefix("Basic ")).decode())
            viewer = {"id": "1", "entity": "team", "username": "ada", "flags": "{}", "teams": {"edges": []}}
            body = json.dumps({"data": {"viewer": viewer}}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_request(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", keys
        server.shutdown()


def test_run_id_set_by_job_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker("wandb", "a")
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    tracker("wandb", "b")
    assert environment()["WANDB_RUN_ID"] == "mine"


def test_key_in_platform_file_enables_online_mode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill_in(tmp_path / "netrc")
    fill_in(tmp_path / "comet.config")
    assert tracker("wandb").online
    assert tracker("comet").online
    assert KEY not in capsys.readouterr().out


@pytest.mark.parametrize(("which", "variable"), [("wandb", "WANDB_API_KEY"), ("comet", "COMET_API_KEY")])
def test_key_of_job_enables_online_mode(monkeypatch: pytest.MonkeyPatch, which: str, variable: str) -> None:
    monkeypatch.setenv(variable, KEY)
    assert tracker(which).online  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("which", "variable", "expected"),
    [
        ("wandb", "WANDB_MODE=online", "WANDB_MODE=online, but there is no W&B key on .*WANDB_API_KEY.*wandb_netrc"),
        ("comet", "COMET_START_ONLINE=true", "no Comet key on .*COMET_API_KEY.*secrets/comet_config.*kept offline"),
    ],
)
def test_online_mode_without_key_error_names_fix(
    monkeypatch: pytest.MonkeyPatch, which: str, variable: str, expected: str
) -> None:
    monkeypatch.setenv(*variable.split("=", 1))
    with pytest.raises(SettingsError, match=expected):
        tracker(which)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("which", "variable"), [("wandb", "WANDB_MODE=offline"), ("comet", "COMET_START_ONLINE=false")]
)
def test_mode_set_by_job_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, which: str, variable: str) -> None:
    fill_in(tmp_path / "netrc")
    fill_in(tmp_path / "comet.config")
    monkeypatch.setenv(*variable.split("=", 1))
    assert not tracker(which).online  # type: ignore[arg-type]


def test_tensorboard_has_one_folder_per_job(a_jobs_worker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Other tests in this process read its files.
    monkeypatch.delitem(sys.modules, "tensorboard", raising=False)
    assert tracker("tensorboard").folder == a_jobs_worker / "tensorboard/digits-7"
    assert "tensorboard" not in sys.modules, "TensorBoard was imported needlessly"


def test_unwritable_tracker_folder_is_named(a_jobs_worker: Path) -> None:
    a_jobs_worker.write_text("a file")
    with pytest.raises(SettingsError, match=r"MLPLATFORM_SHARED: .* cannot be written"):
        tracker("tensorboard")


def test_databricks_missing_file_error_names_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DATABRICKS_HOST", raising=False)
    monkeypatch.setenv("DATABRICKS_CONFIG_FILE", str(tmp_path / "databrickscfg"))
    for uri in ("databricks", "databricks://team"):
        message = r"is 'databricks.*/databrickscfg does not exist on .*DATABRICKS_CONFIG_FILE naming it"
        with pytest.raises(AccessError, match=message):
            server.check(uri)
    (tmp_path / "databrickscfg").write_text("[DEFAULT]\nhost = https://example.org\ntoken = t\n")
    server.check("databricks")
