"""What MLflow loads from the package: tags of every run of a job, whose key goes where, and how models are written."""

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from requests import PreparedRequest, Request

from mlplatform.tracking.plugin import JobContext, JobsOwnKey, pickle_by_default

OWN = "http://mlflow:800"
ACCOUNT = {"Authorization": "Basic of-the-platform"}


def test_a_process_outside_of_jobs_is_left_alone() -> None:
    assert JobContext().in_context() is False


def test_a_process_of_a_job_tags_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_settings_that_are_not_valid_cost_the_tags_and_not_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLPLATFORM_ATTEMPT", "none")
    assert JobContext().in_context() is False
    assert JobContext().tags() == {}


def test_it_loads_nothing_heavy() -> None:
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


def test_a_model_is_pickled_unless_its_caller_says_how_to_write_it() -> None:
    def save_model(model, input_example=None, export_model=False, serialization_format=None, **others):  # type: ignore
        return serialization_format

    pytorch = ModuleType("mlflow.pytorch")
    pytorch.save_model = save_model  # type: ignore[attr-defined]
    pickle_by_default(pytorch)
    save: Callable[..., str | None] = pytorch.save_model  # type: ignore[attr-defined]
    assert save("model") == save("model", path="here") == save("model", None, False, None) == "pickle"
    assert save("model", input_example=np.ones(2)) is None
    assert save("model", export_model=True) is None
    assert save("model", serialization_format="pt2") == "pt2"


def test_log_model_pickles_as_the_tutorial_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_an_mlflow_without_formats_is_left_as_it_is() -> None:
    older = ModuleType("mlflow.pytorch")
    older.log_model = log_model = lambda model, artifact_path: None  # type: ignore[attr-defined]
    pickle_by_default(older)
    assert older.log_model is log_model


def sent(url: str) -> str | None:
    """The key of a request for which MLflow has chosen the account of its credentials file."""
    prepared: PreparedRequest = Request("GET", f"{url}/api", headers=ACCOUNT, auth=JobsOwnKey().get_auth()).prepare()
    return prepared.headers.get("Authorization")


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLPLATFORM_TRACKING_URI", OWN)


@pytest.mark.usefixtures("platform")
def test_the_platforms_account_goes_to_the_platform_alone() -> None:
    assert sent(OWN) == ACCOUNT["Authorization"]
    assert sent("http://elsewhere:8000") is None
    assert sent(f"{OWN}0") is None


@pytest.mark.usefixtures("platform")
def test_a_jobs_own_token_wins_over_the_credentials_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "mine")
    assert sent(OWN) == sent("http://elsewhere:8000") == "Bearer mine"


@pytest.mark.usefixtures("platform")
def test_a_jobs_own_account_goes_wherever_it_sends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ada")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hers")
    assert sent("http://elsewhere:8000") == ACCOUNT["Authorization"]
