"""Other trackers than MLflow: whether a key is found, which folder and id they get, and what is said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mlplatform import credentials
from mlplatform.errors import AccessError, SettingsError
from mlplatform.settings.environment import environment
from mlplatform.settings.job import Settings
from mlplatform.tracking import server
from mlplatform.tracking.other_trackers import tracker

pytestmark = pytest.mark.usefixtures("clean_environment")

VARIABLES = {
    "wandb": (
        "WANDB_MODE",
        "WANDB_DIR",
        "WANDB_RUN_ID",
        "WANDB_NAME",
        "WANDB_RESUME",
        "WANDB_API_KEY",
        "WANDB_ERROR_REPORTING",
    ),
    "comet": (
        "COMET_START_ONLINE",
        "COMET_OFFLINE_DIRECTORY",
        "COMET_EXPERIMENT_KEY",
        "COMET_START_EXPERIMENT_NAME",
        "COMET_API_KEY",
        "COMET_ERROR_TRACKING_ENABLE",
    ),
}
KEY = "0123456789" * 4


@pytest.fixture(autouse=True)
def a_jobs_worker(clean_environment: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A worker of job `digits-7` with the key files as `make env` writes them; the folder that all nodes share."""
    for variable in sum(VARIABLES.values(), ()):
        monkeypatch.setenv(variable, "")  # so that it is restored after the test
        monkeypatch.delenv(variable)
    credentials.wandb_netrc(tmp_path / "netrc")
    credentials.comet_config(tmp_path / "comet.config")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("COMET_CONFIG", str(tmp_path / "comet.config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = Settings.load(job_id="digits-7", shared=tmp_path / "shared")
    monkeypatch.setattr("mlplatform.tracking.other_trackers.settings", lambda: settings)
    return tmp_path / "shared"


def fill_in(path: Path) -> None:
    """Fill in a key file as its comments ask a person to."""
    first, *lines = path.read_text().splitlines()
    assert first.startswith("# Remove the sign")
    path.write_text("\n".join(line.removeprefix("# ").replace("KEY", KEY) for line in lines))


def test_without_a_key_wandb_is_offline_in_the_shared_folder_under_the_jobs_id(
    a_jobs_worker: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tracker("wandb")
    assert (place.folder, place.id, place.online) == (a_jobs_worker / "wandb", "digits-7", False)
    found = environment()
    assert (found["WANDB_MODE"], found["WANDB_RUN_ID"], found["WANDB_RESUME"]) == ("offline", "digits-7", "allow")
    assert found["WANDB_DIR"] == str(place.folder)
    assert f"wandb sync {place.folder}/wandb/offline-run-*-digits-7" in capsys.readouterr().out


def test_without_a_key_comet_is_offline_under_an_id_that_follows_from_the_jobs(
    a_jobs_worker: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, again, other = tracker("comet"), tracker("comet"), tracker("comet", name="second")
    assert place.id == again.id != other.id
    assert 32 <= len(str(place.id)) <= 50
    assert str(place.id).isalnum()
    assert not place.online
    assert environment()["COMET_EXPERIMENT_KEY"] == other.id, "what is opened next is the run that was asked for last"
    assert environment()["COMET_OFFLINE_DIRECTORY"] == str(a_jobs_worker / "comet")
    assert f"comet upload {place.folder}/{place.id}*.zip" in capsys.readouterr().out


def test_each_run_of_a_process_has_an_id_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_NAME", "the job's own")
    for name in ("a", "b", "a"):
        assert tracker("wandb", name).id == environment()["WANDB_RUN_ID"] == f"digits-7-{name}"
        assert environment()["WANDB_NAME"] == "the job's own"


def test_wandb_learns_of_a_second_run_though_it_has_read_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from wandb.sdk import wandb_setup

    monkeypatch.setattr(wandb_setup, "_singleton", None)  # so that no other test has this one's
    tracker("wandb", "a")
    session = wandb_setup.singleton()
    assert session.settings.run_id == "digits-7-a"
    tracker("wandb", "b")
    assert (session.settings.run_id, session.settings.run_name) == ("digits-7-b", "digits-7-b")
    assert not session.did_environment_change(), "it would warn that the change is ignored"


def test_a_child_process_has_a_run_of_its_own(a_jobs_worker: Path) -> None:
    tracker("wandb", "parent")
    code = "from mlplatform.tracking import other_trackers; other_trackers.tracker('wandb', 'child')"
    code += "; print(other_trackers.environment()['WANDB_RUN_ID'])"
    variables = {**environment(), "MLPLATFORM_JOB_ID": "digits-7", "MLPLATFORM_SHARED": str(a_jobs_worker)}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "digits-7-child"


def test_an_id_that_the_job_has_set_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker("wandb", "a")
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    tracker("wandb", "b")
    assert environment()["WANDB_RUN_ID"] == "mine"


def test_a_key_in_the_platforms_file_is_enough_for_online(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill_in(tmp_path / "netrc")
    fill_in(tmp_path / "comet.config")
    assert tracker("wandb").online
    assert tracker("comet").online
    assert KEY not in capsys.readouterr().out


@pytest.mark.parametrize(("which", "variable"), [("wandb", "WANDB_API_KEY"), ("comet", "COMET_API_KEY")])
def test_a_jobs_own_key_is_enough_for_online(monkeypatch: pytest.MonkeyPatch, which: str, variable: str) -> None:
    monkeypatch.setenv(variable, KEY)
    assert tracker(which).online  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("which", "variable", "said"),
    [
        ("wandb", "WANDB_MODE=online", "WANDB_MODE=online, but there is no W&B key on .*WANDB_API_KEY.*wandb_netrc"),
        ("comet", "COMET_START_ONLINE=true", "no Comet key on .*COMET_API_KEY.*secrets/comet_config.*kept offline"),
    ],
)
def test_online_without_a_key_names_the_fix(
    monkeypatch: pytest.MonkeyPatch, which: str, variable: str, said: str
) -> None:
    monkeypatch.setenv(*variable.split("=", 1))
    with pytest.raises(SettingsError, match=said):
        tracker(which)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("which", "variable"), [("wandb", "WANDB_MODE=offline"), ("comet", "COMET_START_ONLINE=false")]
)
def test_what_the_job_asks_for_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, which: str, variable: str
) -> None:
    fill_in(tmp_path / "netrc")
    fill_in(tmp_path / "comet.config")
    monkeypatch.setenv(*variable.split("=", 1))
    assert not tracker(which).online  # type: ignore[arg-type]


def test_tensorboard_has_a_folder_for_each_job(a_jobs_worker: Path) -> None:
    assert tracker("tensorboard").folder == a_jobs_worker / "tensorboard/digits-7"
    assert "tensorboard" not in sys.modules, "nothing of it is needed for that"


def test_a_folder_that_cannot_be_written_is_named(a_jobs_worker: Path) -> None:
    a_jobs_worker.write_text("a file")
    with pytest.raises(SettingsError, match=r"MLPLATFORM_SHARED: .* cannot be written"):
        tracker("tensorboard")


def test_databricks_without_its_file_names_the_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DATABRICKS_HOST", raising=False)
    monkeypatch.setenv("DATABRICKS_CONFIG_FILE", str(tmp_path / "databrickscfg"))
    for uri in ("databricks", "databricks://team"):
        message = r"is 'databricks.*/databrickscfg does not exist on .*DATABRICKS_CONFIG_FILE naming it"
        with pytest.raises(AccessError, match=message):
            server.check(uri)
    (tmp_path / "databrickscfg").write_text("[DEFAULT]\nhost = https://example.org\ntoken = t\n")
    server.check("databricks")
