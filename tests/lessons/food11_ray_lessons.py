"""Food-11 with Lightning, Ray Train and Ray Tune: how the lessons are run, and what they have to leave behind."""

from __future__ import annotations

import re

from lesson import Left, Lesson

EPOCHS = 4
SHORT = ("--size=32", f"--epochs={EPOCHS}", "--unfreeze-at=1")
# Else MLflow imports torch once more, to find out what the logged model needs.
QUICK = {"env": {"MLFLOW_REQUIREMENTS_INFERENCE_TIMEOUT": "1"}}


def learned_in_two_phases(left: Left) -> None:
    """The last layer alone at first, then everything."""
    steps, counts = zip(*left.points("trainable_parameters"), strict=True)
    assert list(steps) == sorted(set(steps)), f"one point a step: {steps}"
    assert counts[0] < counts[1] == counts[-1], f"the backbone is frozen in the first epoch alone: {counts}"


def same_weights(left: Left, ranks: int) -> None:
    sums = left.said("Sum of the weights on each rank")
    assert (len(sums), len(set(sums))) == (ranks, 1), f"ranks have averaged every gradient: {sums}"


def ranks_are_one_run(left: Left) -> None:
    (run,) = left.runs
    assert run.info.status == "FINISHED"
    assert f"after {EPOCHS} epochs on 2 processes" in left.log
    same_weights(left, 2)

    recorded = run.data.params
    assert (recorded["epochs"], recorded["optimizer_name"], recorded["lr"]) == (str(EPOCHS), "Adam", "0.001"), (
        "autolog's hyperparameters"
    )
    assert recorded["unfreeze_at"] == "1", "what the script adds"
    for metric in ("train_loss", "val_loss", "val_accuracy"):
        assert len(left.points(metric)) == EPOCHS, f"autolog's {metric} of each epoch"
    learned_in_two_phases(left)
    assert run.data.metrics["test_accuracy"] == left.said("Test")["test_accuracy"]
    assert any(name.startswith("system/") for name in run.data.metrics), "system metrics"
    assert "model_summary.txt" in left.artifacts()
    models = left.client.search_logged_models([run.info.experiment_id], f"source_run_id = '{run.info.run_id}'")
    assert [model.name for model in models] == ["model"]


def untracked(left: Left) -> None:
    assert "after 1 epochs on 1 processes" in left.log
    assert left.runs == [], "without --autolog nothing is tracked"


def trained_under_ray(left: Left, workers: int, cpus: float) -> None:
    assert [given.get("CPU") for given in left.said("Resources")] == [cpus] * workers, "resources of each worker"
    assert left.log.count("Resources: ") == 1, "what a worker prints is in the log once"
    run = left.run
    assert (run.info.status, left.children) == ("FINISHED", [])
    for metric in ("train_loss", "val_loss", "val_accuracy"):
        assert len(left.points(metric)) == EPOCHS, f"{metric} of each epoch"
    learned_in_two_phases(left)
    same_weights(left, workers)
    assert run.data.params["workers"] == str(workers)
    assert [file for file in left.stored if file.endswith("checkpoint.ckpt")], "checkpoints in storage"


def one_worker(left: Left) -> None:
    trained_under_ray(left, 1, 0.5)


def two_workers(left: Left) -> None:
    trained_under_ray(left, 2, 1)


TRIALS = 16


def poor_trials_were_stopped(left: Left) -> None:
    ends = [child.data.tags.get("mlplatform.trial_end") for child in left.children]
    assert len(ends) == TRIALS, f"a child run for each trial, not {len(ends)}"
    cut = ends.count("early-stopped")
    assert 0 < cut < TRIALS, f"some trials are stopped early, not {cut} of {TRIALS}"
    lines = [line for line in left.lines if re.search(r" (32|64) +0\.\d{3} +\d+ +\d+\.\d{4} +\d\.\d{4}", line)]
    assert len(lines) == TRIALS, "the table of all trials is in the log"
    assert sum("stopped early" in line for line in lines) == cut, "the table and the runs agree"
    assert {child.data.params["batch_size"] for child in left.children} == {"32", "64"}
    assert len({child.data.params["dropout"] for child in left.children}) == TRIALS, "dropout is drawn for each"


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
        "The same script without autologging, on what the machine has.",
        untracked,
        ("--size=32", "--epochs=1"),
    ),
    Lesson(
        "food11/ray_food.py",
        "Ray Train runs the Lightning network on a worker that it asks for.",
        one_worker,
        (*SHORT, "--cpus-per-worker=0.5"),
    ),
    Lesson(
        "food11/ray_food.py",
        "The same on two workers is one run with one point an epoch.",
        two_workers,
        (*SHORT, "--workers=2"),
    ),
    Lesson(
        "food11/tune_food.py",
        "ASHA stops poor combinations early; every trial is a child run and a line of the table.",
        poor_trials_were_stopped,
        ("--size=32", f"--epochs={EPOCHS}", f"--trials={TRIALS}", "--at-once=2", "--memory=1"),
        long=True,
    ),
]
