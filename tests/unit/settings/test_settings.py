import json
from pathlib import Path

import pytest

from mlplatform.errors import SettingsError
from mlplatform.settings.environment import set_default_environment
from mlplatform.settings.job import Settings
from mlplatform_stack.settings import StackSettings


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


def test_only_platforms_own_server_has_separate_page() -> None:
    found = Settings.load(
        tracking_uri="https://mlflow.example.org",
        platform_tracking_uri="http://mlflow:8000",
        tracking_page="http://127.0.0.1:8000",
    )
    assert found.page_of("http://mlflow:8000/") == "http://127.0.0.1:8000"
    assert found.page_of("https://mlflow.example.org/") == "https://mlflow.example.org"
    assert (
        Settings.load(tracking_uri="http://127.0.0.1:5000").page_of("http://127.0.0.1:5000") == "http://127.0.0.1:5000"
    )


def test_account_of_process_names_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Settings.load().names_user
    monkeypatch.setenv("MLPLATFORM_USER", "")
    assert not Settings.load().names_user
    monkeypatch.setenv("MLPLATFORM_USER", "ada")
    assert Settings.load().names_user
    monkeypatch.delenv("MLPLATFORM_USER")
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps({"metadata": {"user": "ada"}}))
    assert Settings.load().names_user


def test_default_does_not_override_user_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLPLATFORM_HOME", "/mine")
    monkeypatch.setenv("MLPLATFORM_STORAGE", "")  # restored after the test
    monkeypatch.delenv("MLPLATFORM_STORAGE")
    set_default_environment({"MLPLATFORM_HOME": "/default", "MLPLATFORM_STORAGE": "/default"})
    assert Settings.load().home == Path("/mine")
    assert Settings.load().storage == "/default"


def test_missing_setting_is_named_without_the_others(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("DOMAIN=ml.example.org\n")
    with pytest.raises(SettingsError, match=r"^MLPLATFORM_VERSION is not set\.$"):
        StackSettings.load(tmp_path / ".env")
