"""The tuning lesson on the stack: eight trials as child runs, some stopped early, the best model registered."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from host import Stack, Trained

pytestmark = pytest.mark.nightly

TRIALS = 8


@pytest.fixture(scope="module")
def tuned(running: Stack) -> Trained:
    """The lesson's job, submitted from the notebook with `mlplatform submit`."""
    command = f"cd ~/work && mlplatform submit tune_digits.py -- --trials {TRIALS}"
    printed = running.execute("notebook", "bash", "-c", command).stdout
    found = re.search(r"\b(tune[_-]digits-\d{8}-\d{6}-\w+)", printed)
    assert found, printed[-3000:]
    return Trained(found[1], printed)


@pytest.fixture
def parent(stack: Stack, tuned: Trained) -> dict:
    """The job's own run, as MLflow's API returns it."""
    (run,) = [run for run in stack.runs_of(tuned.id) if tags(run).get("mlplatform.role") == "job"]
    return run


@pytest.fixture
def children(stack: Stack, tuned: Trained, parent: dict) -> list[dict]:
    """The runs of the trials."""
    runs = stack.runs_of(tuned.id)
    return [run for run in runs if tags(run).get("mlflow.parentRunId") == parent["info"]["run_id"]]


def tags(run: dict) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in run["data"]["tags"]}


def metrics(run: dict) -> dict[str, float]:
    return {metric["key"]: metric["value"] for metric in run["data"].get("metrics", [])}


def test_each_trial_is_child_run_with_parameters_and_metrics(parent: dict, children: list[dict]) -> None:
    assert parent["info"]["status"] == "FINISHED"
    assert len(children) == TRIALS
    for run in children:
        assert run["info"]["status"] == "FINISHED", tags(run)
        assert {"lr", "width"} <= {parameter["key"] for parameter in run["data"]["params"]}
        assert {"val_accuracy", "train_loss"} <= set(metrics(run))
    assert "val_accuracy" not in metrics(parent)


def test_early_stopped_trials_have_fewer_points(stack: Stack, children: list[dict]) -> None:
    ends = Counter(tags(run)["mlplatform.trial_end"] for run in children)
    assert set(ends) == {"completed", "early-stopped"}, ends
    for run in children:
        answer = stack.mlflow.get(
            "/metrics/get-history", params={"run_id": run["info"]["run_id"], "metric_key": "val_accuracy"}
        )
        steps = [point["step"] for point in answer.json()["metrics"]]
        assert steps == list(range(len(steps)))
        assert (len(steps) < 12) == (tags(run)["mlplatform.trial_end"] == "early-stopped")


def test_model_of_best_trial_is_registered(stack: Stack, tuned: Trained, children: list[dict]) -> None:
    answer = stack.mlflow.get("/registered-models/alias", params={"name": "digits-tuned", "alias": "champion"})
    version = answer.json()["model_version"]
    best = max(metrics(run)["val_accuracy"] for run in children)
    (run,) = [run for run in children if run["info"]["run_id"] == version["run_id"]]
    assert metrics(run)["val_accuracy"] == best
    assert metrics(run)["test_accuracy"] >= 0.85
    assert "models:/digits-tuned@champion" in tuned.log


def test_checkpoints_are_stored_in_trial_folders(stack: Stack, tuned: Trained, children: list[dict]) -> None:
    keys = stack.objects("ray", f"{tuned.id}/tune/")
    for run in children:
        trial_id = tags(run)["mlplatform.trial_id"]
        assert any(f"/tune/{trial_id}/checkpoint_" in key for key in keys), trial_id
