"""What the lessons of `jobs/trackers` have to leave behind."""

from __future__ import annotations

from typing import Any

from lesson import Left, Lesson

EPOCHS = list(range(4))


def steps(points: list[list[float]]) -> list[float]:
    return [step for step, _ in points]


def same_values(left: Left, points: list[list[float]]) -> None:
    """What the tracker kept is what was reported; TensorBoard and MLflow's client keep 32 bits."""
    reported = {report["epoch"]: report["loss"] for report in left.reports}
    for step, value in points:
        assert abs(reported[step] - value) < 1e-6 * abs(value), "the tracker's values are the reported ones"


def offline_after_a_restart(left: Left) -> None:
    place, kept = left.said("Tracked"), left.said("Kept offline")
    assert not place["online"], "without a key, offline is chosen"
    assert "is offline" in left.log, "offline is said"
    assert "to sync it: " in left.log, "the command that syncs it later is said"
    same_id(place["id"], left, [part["id"] for part in kept])
    assert len(kept) == 2, "one file of the killed attempt, one of its successor"
    assert steps(kept[-1]["points"]) == EPOCHS, "nothing is lost with the killed worker"
    same_values(left, kept[-1]["points"])


def same_id(run_id: str, left: Left, found: list[str | None]) -> None:
    """A killed attempt may have left a file without a word in it, but its name carries the id."""
    kept = left.said("Kept offline")
    assert all(run_id in part["file"] for part in kept), "one id over the restart"
    assert found[-1] == run_id, "the id stands in the file"
    assert set(found) <= {run_id, None}


def wandb_offline(left: Left) -> None:
    offline_after_a_restart(left)
    assert left.said("Tracked")["id"] == left.job.id, "the tracker's id is the job's"


def comet_offline(left: Left) -> None:
    import comet_ml

    offline_after_a_restart(left)
    assert left.said("Tracked")["id"] == comet_ml.get_experiment_key(left.job.id), (
        "the tracker's id follows from the job's"
    )


def tensorboard_after_a_restart(left: Left) -> None:
    place, (kept,) = left.said("Tracked"), left.said("Kept offline")
    assert place["folder"].endswith(f"/tensorboard/{left.job.id}"), "a folder for each job"
    assert len(kept["files"]) == 2, "the restarted worker went on in the same folder"
    assert steps(kept["points"]) == EPOCHS, "each step once"
    same_values(left, kept["points"])


def mlflow_files(left: Left) -> None:
    kept = left.said("Kept")
    assert "Tracked in file:" in left.log
    (run,) = kept["runs"]
    assert run[1] == "FINISHED", "one job, one run, and it has ended"
    for metric in ("loss", "accuracy"):
        assert steps(kept["points"][metric]) == [0, 1, 2], f"{metric} has one point a step"
    same_values(left, kept["points"]["loss"])
    assert not left.runs, "nothing of it went to the platform's own MLflow"


def lightning(left: Left) -> None:
    kept = left.said("Kept offline")
    ids = {name: {part["id"] for part in parts} for name, parts in kept.items()}
    assert ids["wandb"] == ids["tensorboard"] == {left.job.id}, "one id over the restart"
    assert len(ids["comet"]) == 1, "one id over the restart"
    for name, parts in kept.items():
        assert len(parts) == (1 if name == "tensorboard" else 2), f"{name} has the files of both starts"
        assert len([point for part in parts for point in part["points"]]) == len(EPOCHS), f"{name}: a point an epoch"
    assert len(left.runs) == 1, "MLflow's logger opened no other run"
    assert len(left.points("lightning-loss")) == len(EPOCHS), "MLflow's logger wrote to the job's run"
    # Ray's callback reports Lightning's steps: 1,797 images, 256 a batch, two workers.
    assert [step for step, _ in left.points("loss")] == [4 * (epoch + 1) for epoch in EPOCHS], "beside what is reported"


def says(*words: str) -> Any:
    """A check that the log has a line with all of these words."""

    def check(left: Left) -> None:
        assert any(all(word in line for word in words) for line in left.lines), f"a line with {words}"

    return check


def tracker_lesson(tracker: str, check: Any) -> Lesson:
    return Lesson(
        "trackers/trackers.py",
        "A tracker gets each number once, under the job's id, also after a kill; without a key it is offline.",
        check,
        ("--tracker", tracker, "--fail-once"),
    )


def mistake(which: str, *words: str) -> Lesson:
    return Lesson(
        "trackers/errors.py",
        "A common mistake is answered by a sentence that names the fix.",
        says(*words),
        ("--which", which),
        status="FAILED",
    )


LESSONS = [
    tracker_lesson("wandb", wandb_offline),
    tracker_lesson("comet", comet_offline),
    tracker_lesson("tensorboard", tensorboard_after_a_restart),
    Lesson(
        "trackers/mlflow_elsewhere.py",
        "A job can be tracked in another MLflow than the platform's, as one run.",
        mlflow_files,
        ("--files",),
        options={"env": {"MLFLOW_ALLOW_FILE_STORE": "true"}},
    ),
    Lesson(
        "trackers/lightning_loggers.py",
        "Lightning's own loggers work under Ray Train, each with the job's id, also after a restart.",
        lightning,
        ("--fail-once",),
    ),
    mistake("wandb-key", "WANDB_MODE=online, but there is no W&B key", "WANDB_API_KEY", "secrets/wandb_netrc"),
    mistake("comet-key", "there is no Comet key", "COMET_API_KEY", "secrets/comet_config"),
    mistake("databricks-file", "has no /nowhere/databrickscfg", "DATABRICKS_CONFIG_FILE"),
    mistake("tune-report", "ray.tune.report() reaches nothing", "call ray.train.report()"),
]
