"""Several ranks inside `job_run`: one run, whatever launched them, and no leftovers of the other ranks."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from embedded import SCRIPTS, completed, job_run, runs_of, succeeded

from mlplatform import contract
from mlplatform.client.jobs import Jobs
from mlplatform.settings.job import Settings
from mlplatform.tracking import run as tracking_run

pytestmark = pytest.mark.usefixtures("environment")


def the_run_of(job_id: str) -> Any:
    """The only run that carries the job's id."""
    (run,) = runs_of(job_id)
    assert job_run(job_id).info.run_id == run.info.run_id
    return run


@pytest.mark.nightly
def test_ray_train_ranks_share_run_of_driver(reached: Settings) -> None:
    from mlflow import MlflowClient, artifacts

    with Jobs(reached) as jobs:
        # Otherwise MLflow imports torch again for each rank to infer the logged model's requirements.
        env = {"MLFLOW_REQUIREMENTS_INFERENCE_TIMEOUT": "1"}
        command = ["python", "autologged.py", "--train", "--held", "--logger"]
        job_id = jobs.submit(command, SCRIPTS, name="ranks", env=env)
        log = succeeded(jobs, job_id, 400)
    run = the_run_of(job_id)
    client = MlflowClient()
    assert run.data.params["layers_0_"] == "3"
    assert run.data.params["epochs"] == "2", "the model was not autologged"
    assert len(run.data.params["text"]) == 6000
    assert artifacts.load_dict(f"{run.info.artifact_uri}/params.json")["text"] == "x" * 10_000
    assert [point.step for point in client.get_metric_history(run.info.run_id, "loss")] == [0, 1]
    assert [point.value for point in client.get_metric_history(run.info.run_id, "after_fit")] == [0.0]
    assert "after the fit the run is RUNNING" in log, "rank 0 or Lightning's logger ended the run"
    assert run.info.status == "FINISHED"
    assert contract.TAG_HOLDER not in run.data.tags
    assert run.data.tags["mlplatform.entrypoint"] == "python autologged.py --train --held --logger"
    assert "rank 1 of 2 has logged to file:///" in log
    assert "Parameter 'text' has 10000 characters, of which MLflow stores 6000" in log


@pytest.mark.nightly
def test_torchrun_ranks_share_run_and_failure_is_recorded(tmp_path: Path, reached: Settings) -> None:
    from mlflow import artifacts

    torchrun = [str(Path(sys.executable).parent / "torchrun"), "--standalone", "--nproc-per-node=2"]
    env = {**os.environ, "MLPLATFORM_JOB_ID": "torchrun", "TMPDIR": str(tmp_path)}
    done = completed(*torchrun, SCRIPTS / "ranks.py", env=env, timeout=120, start_new_session=True)
    output = done.stdout + done.stderr
    assert done.returncode != 0
    assert f"rank 0 has logged to {reached.tracking_uri}" in output, output[-3000:]
    assert "rank 1 has logged to file:///" in output
    found = the_run_of("torchrun")
    assert found.info.status == "FAILED", "rank 0's signal hid the failure of rank 1"
    assert found.data.params == {"lr": "0.1"}
    # System metrics come every 10 s, which a slow machine needs.
    own = {name: value for name, value in found.data.metrics.items() if not name.startswith("system/")}
    assert own == {"rank": 0.0}
    assert "rank 1 has lost its data" in artifacts.load_text(f"{found.info.artifact_uri}/traceback-rank-1.txt")
    assert not list(tmp_path.glob("mlplatform-rank-*")), "data of the other rank was left"


def test_scratch_run_accepts_calls_and_restores_process(environment: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    mlflow.set_experiment("before")
    before = {key: value for key, value in os.environ.items() if key.startswith("MLFLOW_")}
    monkeypatch.setenv("RANK", "3")
    with tracking_run.job_run(params={"lr": 1}) as run:
        assert run
        assert mlflow.get_tracking_uri().startswith("file:///")
        mlflow.set_experiment("elsewhere")
        mlflow.log_dict({"a": 1}, "a.json")
        mlflow.log_metrics({"loss": 1.0}, step=3)
        with tracking_run.job_run() as inner:
            assert inner
            assert inner.info.run_id == run.info.run_id
        with mlflow.start_run(nested=True):
            mlflow.set_tag("a", "b")
    assert mlflow.active_run() is None
    assert mlflow.get_tracking_uri() == environment.tracking_uri == mlflow.get_registry_uri()
    assert {key: value for key, value in os.environ.items() if key.startswith("MLFLOW_")} == before
    with mlflow.start_run() as after:
        experiment = mlflow.get_experiment_by_name("before")
        assert experiment
        assert after.info.experiment_id == experiment.experiment_id
    assert mlflow.get_experiment_by_name("elsewhere") is None
