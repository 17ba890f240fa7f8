import json
from pathlib import Path

import pytest

from mlplatform.errors import SettingsError
from mlplatform.settings.environment import set_default_environment
from mlplatform.settings.job import Settings


def test_identity_comes_from_rays_job_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = {"job_submission_id": "raysubmit_1", "user": "ada", "git_commit": "abc"}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps({"metadata": metadata, "runtime_env": {}}))
    found = Settings.load()
    assert (found.job_id, found.user, found.git_commit) == ("raysubmit_1", "ada", "abc")


def test_variables_win_over_rays_job_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = {"job_submission_id": "raysubmit_1", "user": "ada"}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps({"metadata": metadata}))
    monkeypatch.setenv("MLPLATFORM_JOB_ID", "digits-7")
    assert Settings.load().job_id == "digits-7"
    assert Settings.load().user == "ada"


def test_outside_of_jobs_there_is_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLPLATFORM_JOB_ID", "")
    assert Settings.load().job_id is None
    assert Settings.load().tracking_uri is None


def test_wrong_values_are_all_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLPLATFORM_ATTEMPT", "0")
    monkeypatch.setenv("MLPLATFORM_DRIVER_LABEL", "worker")
    with pytest.raises(SettingsError) as error:
        Settings.load()
    assert "MLPLATFORM_ATTEMPT='0'" in str(error.value)
    assert "MLPLATFORM_DRIVER_LABEL='worker'" in str(error.value)


def test_environment_brings_the_same_settings_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = Settings.load(tracking_uri="http://m:1", storage="s3://b/c", ray_auth_token_path=tmp_path / "t", job_id="x")
    for variable, value in first.environment().items():
        monkeypatch.setenv(variable, value)
    second = Settings.load()
    assert second.environment() == first.environment()
    assert second.job_id is None, "a job's identity is not part of how to reach a platform"
    assert first.environment()["RAY_AUTH_MODE"] == "token"


def test_a_default_leaves_what_the_user_has_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLPLATFORM_HOME", "/mine")
    monkeypatch.setenv("MLPLATFORM_STORAGE", "")  # so that it is restored after the test
    monkeypatch.delenv("MLPLATFORM_STORAGE")
    set_default_environment({"MLPLATFORM_HOME": "/default", "MLPLATFORM_STORAGE": "/default"})
    assert Settings.load().home == Path("/mine")
    assert Settings.load().storage == "/default"
