"""What MLflow loads from the package: tags of every run of a job, and whose key goes where."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest
from requests import PreparedRequest, Request

from mlplatform.mlflow_plugin import JobContext, JobsOwnKey

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
        "import sys; from mlplatform.mlflow_plugin import JobContext; JobContext().tags(); "
        "print({'ray', 'torch', 'mlflow'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "set()"


def test_mlflow_finds_both_plugins() -> None:
    (context,) = entry_points(group="mlflow.run_context_provider", name="mlplatform")
    (key,) = entry_points(group="mlflow.request_auth_provider", name="mlplatform")
    assert context.load() is JobContext
    assert key.load() is JobsOwnKey


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
