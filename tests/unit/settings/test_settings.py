import json
from pathlib import Path

import pytest

from mlplatform.errors import SettingsError
from mlplatform.settings.environment import set_default_environment
from mlplatform.settings.job import Settings


def test_identity_is_read_from_ray_job_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = {"job_submission_id": "raysubmit_1", "user": "ada", "git_commit": "abc"}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps({"metadata": metadata, "runtime_env": {}}))
    found = Settings.load()
    assert (found.job_id, found.user, found.git_commit) == ("raysubmit_1", "ada", "abc")


def test_variables_override_ray_job_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = {"job_submission_id": "raysubmit_1", "user": "ada"}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps({"metadata": metadata}))
    monkeypatch.setenv("MLPLATFORM_JOB_ID", "digits-7")
    assert Settings.load().job_id == "digits-7"
    assert Settings.load().user == "ada"


def test_process_outside_jobs_has_no_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLPLATFORM_JOB_ID", "")
    assert Settings.load().job_id is None
    assert Settings.load().tracking_uri is None


def test_all_invalid_values_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLPLATFORM_ATTEMPT", "0")
    monkeypatch.setenv("MLPLATFORM_DRIVER_LABEL", "worker")
    with pytest.raises(SettingsError) as error:
        Settings.load()
    assert "MLPLATFORM_ATTEMPT='0'" in str(error.value)
    assert "MLPLATFORM_DRIVER_LABEL='worker'" in str(error.value)


def test_environment_transfers_settings_to_other_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = Settings.load(tracking_uri="http://m:1", storage="s3://b/c", ray_auth_token_path=tmp_path / "t", job_id="x")
    for variable, value in first.environment().items():
        monkeypatch.setenv(variable, value)
    second = Settings.load()
    assert second.environment() == first.environment()
    assert second.job_id is None, "a job's identity is not part of the platform's addresses"
    assert first.environment()["RAY_AUTH_MODE"] == "token"


def test_default_does_not_override_user_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLPLATFORM_HOME", "/mine")
    monkeypatch.setenv("MLPLATFORM_STORAGE", "")  # restored after the test
    monkeypatch.delenv("MLPLATFORM_STORAGE")
    set_default_environment({"MLPLATFORM_HOME": "/default", "MLPLATFORM_STORAGE": "/default"})
    assert Settings.load().home == Path("/mine")
    assert Settings.load().storage == "/default"
