"""A later attempt of a job that logs again, with other values, what the first one has logged to the same run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import mlflow
import pytest
from embedded import completed, job_run
from guarded_mlflow import Server

pytestmark = pytest.mark.usefixtures("as_person")

SCRIPT = """
import os, sys, time
import mlflow, mlplatform, numpy, sklearn.linear_model, torch
from lightning.pytorch.loggers import MLFlowLogger
from mlflow.entities import Metric, Param

attempt = os.environ["MLPLATFORM_ATTEMPT"]
mlflow.set_experiment(f"of attempt {attempt}")
with mlplatform.job_run(params={"same": 1, "world": attempt}) as run:
    run_id, client = run.info.run_id, mlflow.MlflowClient()
    mlflow.log_param("started", time.time())
    mlflow.log_params({"pid": os.getpid(), "epochs": 3, "p" * 250: attempt})
    client.log_param(run_id, "by client", attempt)
    params = [Param("in batch", attempt), Param("new" + attempt, "x")]
    client.log_batch(run_id, [Metric("loss", 1.0, 0, int(attempt))], params)
    mlflow.log_param("async", attempt, synchronous=False).wait()
    logger = MLFlowLogger("other", tracking_uri=os.environ["MLFLOW_TRACKING_URI"], run_id=run_id)
    logger.log_hyperparams({"host": attempt})
    mlflow.set_tag("stage", attempt)
    mlflow.set_experiment("another")
    mlflow.log_text(attempt, "notes.txt")
    mlflow.log_table({"a": [attempt]}, "table.json")
    mlflow.log_input(mlflow.data.from_numpy(numpy.zeros(2), name="zeros"))
    mlflow.pytorch.log_model(torch.nn.Linear(1, 1), name="model", pip_requirements=["torch"])
    mlflow.sklearn.autolog(log_models=False, log_datasets=False)
    sklearn.linear_model.Ridge(alpha=float(attempt)).fit([[0.0], [1.0]], [0.0, 1.0])
    try:
        mlflow.log_param("pid", "another of this process")
        sys.exit("a process changed its own parameter")
    except mlflow.exceptions.MlflowException as error:
        assert "Changing param values" in str(error)
    with mlflow.start_run(run_name="inner", nested=True):
        mlflow.log_param("started", time.time())
    if attempt == "1":
        os._exit(9)
"""


def test_each_way_to_log_again_keeps_both_values(server: Server, tmp_path: Path) -> None:
    outputs = []
    for attempt in ("1", "2"):
        environment = {**os.environ, "MLPLATFORM_JOB_ID": "changes", "MLPLATFORM_ATTEMPT": attempt}
        environment["MLPLATFORM_STORAGE"] = str(tmp_path / "storage")
        done = completed(sys.executable, "-c", SCRIPT, env=environment, cwd=tmp_path)
        assert done.returncode == (9 if attempt == "1" else 0), done.stderr
        outputs.append(done.stderr)
    found = job_run("changes")
    assert found.info.status == "FINISHED"
    params, tags = found.data.params, found.data.tags
    changed = {"world", "by client", "in batch", "async", "host"}
    assert {name: params[name] for name in changed} == dict.fromkeys(changed, "1")
    assert params["alpha"] == "1.0"
    steps = [point.step for point in mlflow.MlflowClient().get_metric_history(found.info.run_id, "loss")]
    assert steps == [1, 2], "what came with a changed parameter"
    assert {"same", "epochs", "new1", "new2"} <= params.keys()
    assert tags["stage"] == "2"
    assert {name: tags[f"param.attempt-2.{name}"] for name in changed} == dict.fromkeys(changed, "2")
    assert tags["param.attempt-2.alpha"] == "2.0"
    assert float(tags["param.attempt-2.started"]) > float(params["started"])
    assert tags[f"param.attempt-2.{'p' * 250}"[:250]] == "2"
    assert "param.attempt-2.epochs" not in tags
    assert [output.count("The run keeps the first value of") for output in outputs] == [0, 2]
    assert "'world'" in outputs[1]
