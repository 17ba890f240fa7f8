"""One short training with each framework: its reports reach MLflow and the history, its checkpoint the storage."""

from __future__ import annotations

import json
from typing import Any

import pytest
from embedded import SCRIPTS, job_run

from mlplatform.client.jobs import Jobs
from mlplatform.settings.job import Settings
from mlplatform.storage import checkpoints

EXPECTED: dict[str, dict[str, float]] = {
    "transformers": {"step": 2},
    "accelerate": {"processes": 2},
    "elastic": {},
    # Of both ranks, the mean.
    "ray_data": {"rows": 6, "ids": sum(range(12)) / 2},
}


@pytest.fixture(scope="module")
def trained(reached: Settings) -> tuple[str, list[str]]:
    """Id and log of one job, so that all share its start."""
    with Jobs(reached) as jobs:
        job_id = jobs.submit(["python", "frameworks.py", *EXPECTED], SCRIPTS, name="frameworks")
        log = list(jobs.follow(job_id))
        assert jobs.get(job_id).status == "SUCCEEDED", "\n".join(log[-60:])
        return job_id, log


@pytest.mark.parametrize("name", ["transformers", "accelerate", "elastic", "ray_data"])
def test_training_with_framework_is_tracked_and_stored(
    trained: tuple[str, list[str]], environment: Settings, name: str
) -> None:
    from mlflow import MlflowClient

    job_id, log = trained
    marker = f"{name}: history "
    history: list[dict[str, Any]] = json.loads(next(line for line in log if marker in line).partition(marker)[2])
    assert [report["training_iteration"] for report in history] == [1, 2]
    assert EXPECTED[name].items() <= history[-1].items()
    metric = "loss" if name in ("transformers", "accelerate") else "workers" if name == "elastic" else "rows"
    # The first fit of a job has no prefix.
    key = metric if name == "transformers" else f"{name}/{metric}"
    assert len(MlflowClient().get_metric_history(job_run(job_id).info.run_id, key)) == 2
    stored = {training.name: training.latest for training in checkpoints.training_runs(job_id)}
    assert stored[name].metrics.keys() >= EXPECTED[name].keys() | {metric}
