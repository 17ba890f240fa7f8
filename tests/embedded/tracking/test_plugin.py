"""Plugins that MLflow loads from the package: tags on every run of a job, and credentials per server."""

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from requests import PreparedRequest, Request

from mlplatform.tracking import plugin
from mlplatform.tracking.plugin import JobContext, JobsOwnKey

pytestmark = pytest.mark.usefixtures("clean_environment")

OWN = "http://mlflow:800"
ACCOUNT = {"Authorization": "Basic of-the-platform"}


def test_process_outside_jobs_gets_no_tags() -> None:
    assert JobContext().in_context() is False


def test_job_process_tags_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in (("JOB_ID", "digits-7"), ("ATTEMPT", "2"), ("IMAGE", "ray:1"), ("USER", "ada")):
        monkeypatch.setenv(f"MLPLATFORM_{variable}", value)
    monkeypatch.setenv("MLPLATFORM_GIT_COMMIT", "abc")
    assert JobContext().in_context()
    tags = JobContext().tags()
    assert tags.pop("mlplatform.node")
    assert tags == {
        "mlplatform.job_id": "digits-7",
        "mlplatform.attempt": "2",
        "mlplatform.image": "ray:1",
        "mlflow.user": "ada",
        "mlflow.source.git.commit": "abc",
    }


def test_runs_outside_jobs_name_person_of_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLPLATFORM_USER", "ada")
    assert JobContext().in_context()
    assert JobContext().tags() == {"mlflow.user": "ada"}


def test_invalid_settings_drop_tags_and_log_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(plugin, "_reported", set())
    monkeypatch.setenv("MLPLATFORM_ATTEMPT", "none")
    assert JobContext().in_context() is False
    assert JobContext().tags() == {}
    assert caplog.text.count("Runs are not tagged with their job: MLPLATFORM_ATTEMPT='none'") == 1


def test_plugin_imports_nothing_heavy() -> None:
    program = (
        "import sys, mlflow; from mlplatform.tracking.plugin import JobContext; JobContext().tags(); "
        "print({'ray', 'torch', 'mlflow.pytorch'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "set()"


def test_mlflow_finds_both_plugins() -> None:
    (context,) = entry_points(group="mlflow.run_context_provider", name="mlplatform")
    (key,) = entry_points(group="mlflow.request_auth_provider", name="mlplatform")
    assert context.load() is JobContext
    assert key.load() is JobsOwnKey


def test_tutorials_log_model_call_pickles_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow
    import torch

    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    try:
        with mlflow.start_run():
            logged = mlflow.pytorch.log_model(torch.nn.Linear(2, 1), "food11", pip_requirements=["torch"])
        assert mlflow.pytorch.load_model(logged.model_uri).in_features == 2
    finally:
        mlflow.set_tracking_uri(None)


def sent(url: str) -> str | None:
    """The Authorization header of a request for which MLflow chose the account of its credentials file."""
    prepared: PreparedRequest = Request("GET", f"{url}/api", headers=ACCOUNT, auth=JobsOwnKey().get_auth()).prepare()
    return prepared.headers.get("Authorization")


@pytest.fixture
def platform(clean_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLPLATFORM_TRACKING_URI", OWN)


@pytest.mark.usefixtures("platform")
def test_platform_account_is_sent_to_platform_only() -> None:
    assert sent(OWN) == ACCOUNT["Authorization"]
    assert sent("http://elsewhere:8000") is None
    assert sent(f"{OWN}0") is None


@pytest.mark.usefixtures("platform")
def test_token_of_job_overrides_credentials_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "mine")
    assert sent(OWN) == sent("http://elsewhere:8000") == "Bearer mine"


@pytest.mark.usefixtures("platform")
def test_account_of_job_is_sent_to_any_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ada")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hers")
    assert sent("http://elsewhere:8000") == ACCOUNT["Authorization"]


@pytest.mark.usefixtures("platform")
def test_account_of_attempt_is_sent_to_platform_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ada")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", f"mlp_{'a' * 20}_{'B' * 40}")
    assert sent(OWN) == ACCOUNT["Authorization"]
    assert sent("http://elsewhere:8000") is None
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "mine")
    assert sent(OWN) == ACCOUNT["Authorization"]
    assert sent("http://elsewhere:8000") == "Bearer mine"
