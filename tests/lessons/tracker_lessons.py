"""Checks of the lessons in `jobs/trackers`."""

from __future__ import annotations

from typing import Any

from lesson import Left, Lesson

EPOCHS = list(range(4))


def steps(points: list[list[float]]) -> list[float]:
    return [step for step, _ in points]


def same_values(left: Left, points: list[list[float]]) -> None:
    """Check that the tracker stored the reported values; TensorBoard and MLflow's client store 32 bits."""
    reported = {report["epoch"]: report["loss"] for report in left.reports}
    for step, value in points:
        assert abs(reported[step] - value) < 1e-6 * abs(value), "the tracker's values are the reported ones"


def offline_after_a_restart(left: Left) -> None:
    place, kept = left.printed("Tracked"), left.printed("Kept offline")
    assert not place["online"], "without a key, offline mode is selected"
    assert "is offline" in left.log, "the log reports offline mode"
    assert "to sync it: " in left.log, "the log contains the command that syncs later"
    # A killed attempt may have left an empty file, but its name contains the id.
    found = [part["id"] for part in kept]
    assert all(place["id"] in part["file"] for part in kept), "one id over the restart"
    assert found[-1] == place["id"], "the file contains the id"
    assert set(found) <= {place["id"], None}
    assert len(kept) == 2, "one file of the killed attempt, one of its successor"
    assert steps(kept[-1]["points"]) == EPOCHS, "nothing is lost with the killed worker"
    same_values(left, kept[-1]["points"])


def wandb_offline(left: Left) -> None:
    offline_after_a_restart(left)
    assert left.printed("Tracked")["id"] == left.job.id, "the tracker's id is the job's"
    last = left.printed("Kept offline")[-1]
    assert (last["project"], last["name"]) == ("digits", "one layer"), "the chosen project and name"


def comet_offline(left: Left) -> None:
    import comet_ml

    offline_after_a_restart(left)
    derived = comet_ml.get_experiment_key(left.job.id)
    assert left.printed("Tracked")["id"] == derived, "the tracker's id is derived from the job's"


def tensorboard_after_a_restart(left: Left) -> None:
    place, (kept,) = left.printed("Tracked"), left.printed("Kept offline")
    assert place["folder"].endswith(f"/tensorboard/{left.job.id}"), "one folder per job"
    assert len(kept["files"]) == 2, "the restarted worker continued in the same folder"
    assert steps(kept["points"]) == EPOCHS, "each step once"
    same_values(left, kept["points"])


def mlflow_files(left: Left) -> None:
    kept = left.printed("Kept")
    assert "Tracked in file:" in left.log
    (run,) = kept["runs"]
    assert run[1] == "FINISHED", "one job, one run, and it has ended"
    for metric in ("loss", "accuracy"):
        assert steps(kept["points"][metric]) == [0, 1, 2], f"{metric} has one point per step"
    same_values(left, kept["points"]["loss"])
    assert not left.runs, "nothing was sent to the platform's own MLflow"


def lightning(left: Left) -> None:
    kept = left.printed("Kept offline")
    ids = {name: {part["id"] for part in parts} for name, parts in kept.items()}
    assert ids["wandb"] == ids["tensorboard"] == {left.job.id}, "one id over the restart"
    assert len(ids["comet"]) == 1, "one id over the restart"
    for name, parts in kept.items():
        assert len(parts) == (1 if name == "tensorboard" else 2), f"{name} has the files of both starts"
        assert len([point for part in parts for point in part["points"]]) == len(EPOCHS), f"{name}: one point per epoch"
    assert len(left.runs) == 1, "MLflow's logger did not open another run"
    assert len(left.points("lightning-loss")) == len(EPOCHS), "MLflow's logger wrote to the job's run"
    # Ray's callback reports Lightning's steps: 1,797 images, 256 per batch, two workers.
    expected = [4 * (epoch + 1) for epoch in EPOCHS]
    assert [step for step, _ in left.points("loss")] == expected, "the reported metrics are in the same run"


def tracker_lesson(tracker: str, check: Any) -> Lesson:
    return Lesson(
        "trackers/trackers.py",
        "A tracker receives each value once, under the job's id, even after a kill; without a key it works offline.",
        check,
        ("--tracker", tracker, "--fail-once"),
    )


def mistake(which: str, *words: str) -> Lesson:
    """A lesson whose log has a line with all of these words."""

    def check(left: Left) -> None:
        assert any(all(word in line for word in words) for line in left.lines), f"a line with {words}"

    return Lesson(
        "trackers/errors.py",
        "A common mistake fails with a message that names the fix.",
        check,
        ("--which", which),
        status="FAILED",
    )


LESSONS = [
    tracker_lesson("wandb", wandb_offline),
    tracker_lesson("comet", comet_offline),
    tracker_lesson("tensorboard", tensorboard_after_a_restart),
    Lesson(
        "trackers/mlflow_elsewhere.py",
        "A job can be tracked in an MLflow other than the platform's, as one run.",
        mlflow_files,
        ("--files",),
        options={"env": {"MLFLOW_ALLOW_FILE_STORE": "true"}},
    ),
    Lesson(
        "trackers/lightning_loggers.py",
        "Lightning's own loggers work with Ray Train, each with the job's id, even after a restart.",
        lightning,
        ("--fail-once",),
    ),
    mistake("wandb-key", "WANDB_MODE=online, but there is no W&B key", "WANDB_API_KEY", "secrets/wandb_netrc"),
    mistake("comet-key", "there is no Comet key", "COMET_API_KEY", "secrets/comet_config"),
    mistake("databricks-file", "/nowhere/databrickscfg does not exist", "DATABRICKS_CONFIG_FILE"),
    mistake("tune-report", "ray.tune.report() reaches nothing", "call ray.train.report()"),
]
