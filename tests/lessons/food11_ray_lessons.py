"""Checks of the Food-11 lessons with Lightning, Ray Train and Ray Tune."""

from __future__ import annotations

import re
from functools import partial

from lesson import Left, Lesson

EPOCHS = 4
SHORT = ("--size=32", f"--epochs={EPOCHS}", "--unfreeze-at=1")
# Otherwise MLflow imports torch again to infer the requirements of the logged model.
QUICK = {"env": {"MLFLOW_REQUIREMENTS_INFERENCE_TIMEOUT": "1"}}


def learned_in_two_phases(left: Left) -> None:
    """Check that the last layer was trained first, then the whole network."""
    steps, counts = zip(*left.points("trainable_parameters"), strict=True)
    assert list(steps) == sorted(set(steps)), f"one point per step: {steps}"
    assert counts[0] < counts[1] == counts[-1], f"the backbone is frozen in the first epoch only: {counts}"


def same_weights(left: Left, ranks: int) -> None:
    sums = left.printed("Sum of the weights on each rank")
    assert (len(sums), len(set(sums))) == (ranks, 1), f"ranks average every gradient: {sums}"


def ranks_are_one_run(left: Left) -> None:
    (run,) = left.runs
    assert run.info.status == "FINISHED"
    assert f"after {EPOCHS} epochs on 2 processes" in left.log
    same_weights(left, 2)

    recorded = run.data.params
    logged = (recorded["epochs"], recorded["optimizer_name"], recorded["lr"])
    assert logged == (str(EPOCHS), "Adam", "0.001"), "autolog's hyperparameters"
    assert recorded["unfreeze_at"] == "1", "parameter that the script adds"
    for metric in ("train_loss", "val_loss", "val_accuracy"):
        assert len(left.points(metric)) == EPOCHS, f"autologged {metric} of each epoch"
    learned_in_two_phases(left)
    assert run.data.metrics["test_accuracy"] == left.printed("Test")["test_accuracy"]
    assert any(name.startswith("system/") for name in run.data.metrics), "system metrics"
    assert "model_summary.txt" in left.artifacts()
    assert [model.name for model in left.models] == ["model"]


def untracked(left: Left) -> None:
    assert "after 1 epochs on 1 processes" in left.log
    assert left.runs == [], "nothing is tracked without --autolog"


def trained_under_ray(left: Left, workers: int, cpus: float) -> None:
    assert [given.get("CPU") for given in left.printed("Resources")] == [cpus] * workers, "resources of each worker"
    assert left.log.count("Resources: ") == 1, "a worker's output is in the log once"
    run = left.run
    assert (run.info.status, left.children) == ("FINISHED", [])
    for metric in ("train_loss", "val_loss", "val_accuracy"):
        assert len(left.points(metric)) == EPOCHS, f"{metric} of each epoch"
    learned_in_two_phases(left)
    same_weights(left, workers)
    assert run.data.params["workers"] == str(workers)
    assert [file for file in left.stored if file.endswith("checkpoint.ckpt")], "checkpoints in storage"


one_worker = partial(trained_under_ray, workers=1, cpus=0.5)
two_workers = partial(trained_under_ray, workers=2, cpus=1)

TRIALS = 16


def poor_trials_were_stopped(left: Left) -> None:
    ends = [child.data.tags.get("mlplatform.trial_end") for child in left.children]
    assert len(ends) == TRIALS, f"one child run per trial, but found {len(ends)}"
    cut = ends.count("early-stopped")
    assert 0 < cut < TRIALS, f"some trials are stopped early, but here {cut} of {TRIALS}"
    lines = [line for line in left.lines if re.search(r" (32|64) +0\.\d{3} +\d+ +\d+\.\d{4} +\d\.\d{4}", line)]
    assert len(lines) == TRIALS, "the table of all trials is in the log"
    assert sum("stopped early" in line for line in lines) == cut, "the table and the runs agree"
    assert {child.data.params["batch_size"] for child in left.children} == {"32", "64"}
    assert len({child.data.params["dropout"] for child in left.children}) == TRIALS, "dropout is sampled for each trial"


LESSONS = [
    Lesson(
        "food11/lightning_food.py",
        "Lightning trains on several processes, and autologging makes one run of all ranks.",
        ranks_are_one_run,
        (*SHORT, "--devices=2", "--autolog"),
        options=QUICK,
    ),
    Lesson(
        "food11/lightning_food.py",
        "The same script without autologging, on the machine's own devices.",
        untracked,
        ("--size=32", "--epochs=1"),
    ),
    Lesson(
        "food11/ray_food.py",
        "Ray Train runs the Lightning network on a worker that the script requests.",
        one_worker,
        (*SHORT, "--cpus-per-worker=0.5"),
    ),
    Lesson(
        "food11/ray_food.py",
        "The same on two workers is one run with one point per epoch.",
        two_workers,
        (*SHORT, "--workers=2"),
    ),
    Lesson(
        "food11/tune_food.py",
        "ASHA stops poor combinations early; every trial is a child run and a line in the table.",
        poor_trials_were_stopped,
        ("--size=32", f"--epochs={EPOCHS}", f"--trials={TRIALS}", "--at-once=2", "--memory=1"),
    ),
]
