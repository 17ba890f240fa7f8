"""Checks of the lessons in `jobs/train` on checkpoints, elastic groups, Ray Data and searches."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from lesson import JOBS, Left, Lesson

from mlplatform.registry import datasets
from mlplatform.storage import checkpoints

TRAINING = [number for number in range(240) if number % 5 != 4]
"""Ids of the rows that ray_data.py generates and does not filter out."""

OBJECT_STORE_BLOCK = 16 * 2**20


def put_measurements() -> None:
    """Upload the data set, as the first command of the lesson does."""
    with TemporaryDirectory() as folder:
        subprocess.run([sys.executable, JOBS / "train" / "ray_data.py", "--make", folder], check=True)
        datasets.put(Path(folder), "measurements")


def loaded(left: Left, uri: str) -> list[str]:
    """File names of a checkpoint in storage; empty if it was deleted."""
    return [file.rpartition("/")[2] for file in left.stored if file.startswith(f"{uri}/")]


def check_checkpoints(left: Left) -> None:
    first = [(report["epoch"], report["model"]) for report in left.reports if report["run"] == "first"]
    assert first == [(0, 0), (1, 1), (2, 3), (3, 6), (4, 10)], "the worker that failed cost or repeated an epoch"
    assert left.printed("Kept") == [[2, 0.75], [3, 0.25]], "others than the best two were kept"
    assert left.printed("Latest") == {"epoch": 4, "model": 10}
    assert left.printed("Best") == {"epoch": 2, "model": 3}
    # The last report before the failure may not have reached the controller; then training resumes from the one before.
    resumed = re.search(r"Started from its own checkpoint: epoch (1, model 1|2, model 3)\b", left.log)
    assert resumed, "not resumed after the failure"
    assert "Started from the given checkpoint: epoch 2, model 3" in left.log, "the given checkpoint was not used"
    second = [report["epoch"] for report in left.reports if report["run"] == "second"]
    assert second == [3, 4], "the second training run did not start from the given checkpoint"
    assert left.printed("Second") == {"epoch": 4, "model": 10}
    nothing = {"checkpoint": None, "metrics": None, "table": None, "epochs": [0, 1, 2]}
    why = "a run without checkpoints must have a result without reports, and all reports in its history"
    assert left.printed("Without") == nothing, why
    without = [report["epoch"] for report in left.reports if report["run"] == "none"]
    assert without.count(0) == 2, f"without checkpoints, a restarted training starts over: {without}"
    assert left.points("model") == [(0, 0), (1, 1), (2, 3), (3, 6), (4, 10)]
    check_addresses(left)


def check_addresses(left: Left) -> None:
    """Check that `mlplatform jobs ID` shows the checkpoints, and that they are in storage."""
    command = [sys.executable, "-m", "mlplatform", "jobs", left.job.id]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    first, second = checkpoints.training_runs(left.job.id)
    assert (first.latest.metrics["epoch"], first.best.metrics["epoch"]) == (4, 2)
    assert (second.latest.metrics["epoch"], second.best.metrics["epoch"]) == (4, 3)
    for kept in (first.latest, first.best, second.latest, second.best):
        assert kept.uri in shown, f"{kept.uri} is not shown:\n{shown}"
        assert "state.json" in loaded(left, kept.uri), f"{kept.uri} is shown, but is not in storage"
    assert left.run.info.run_id in shown
    assert "Best of first" in shown
    folders = {file.split("/first/")[1].split("/")[0] for file in left.stored if "/first/checkpoint_2" in file}
    assert len(folders) == 3, f"expected the best two and the latest, found {folders}"


def check_no_retries(left: Left) -> None:
    assert "This worker fails on purpose, in epoch 3." in left.job.message + left.log
    assert left.run.info.status == "FAILED"
    assert [report["epoch"] for report in left.reports] == list(range(len(left.reports))), "it was restarted"
    assert len(left.reports) <= 3


def check_three_failures(left: Left) -> None:
    assert left.printed("Failures left") == 0
    first = [report["epoch"] for report in left.reports if report["run"] == "first"]
    assert first == [0, 1, 2, 3, 4], "three failures of a worker cost or repeated an epoch"
    assert left.run.info.status == "FINISHED"


def check_elastic(left: Left) -> None:
    stages = left.printed("Sizes")
    assert [size for size, _ in stages] == [2, 1, 2], f"the group did not shrink and then grow: {stages}"
    assert all(epochs >= 2 for _, epochs in stages)
    total = sum(epochs for _, epochs in stages)
    assert [step for step, _ in left.points("workers")] == list(range(total)), "an epoch is missing or counted twice"
    assert left.printed("Rows and sum of ids of an epoch") == [[120, sum(range(120))]], "a row was missed or seen twice"


def check_elastic_refusal(left: Left) -> None:
    assert "--rows is 121, which 2 workers cannot split equally; use an even number." in left.log
    assert not left.runs, "nothing was started"


def check_ray_data(left: Left) -> None:
    split = len(TRAINING) * 3 // 4
    for epoch in (0, 1):
        seen = left.printed(f"Epoch {epoch}")
        assert (seen["train_rows"], seen["validation_rows"]) == (split, len(TRAINING) - split)
        ids = seen["train_ids"] + seen["validation_ids"]
        assert ids == sum(TRAINING), "a row was missed, seen twice or not filtered"
    ranks = {report["epoch"]: [rank.get("train_rows") for rank in report["ranks"]] for report in left.reports}
    assert ranks[0] == [split // 2, split // 2], "the shards differ in length"
    streamed, store = left.printed("Epoch 2"), left.printed("Object store")
    assert streamed["large_bytes"] > store, "the streamed data would have fit into the object store"
    assert streamed["large_rows"] == streamed["large_bytes"] // OBJECT_STORE_BLOCK
    assert streamed["large_ids"] == sum(range(streamed["large_rows"]))
    (used,) = left.run.inputs.dataset_inputs
    assert (used.dataset.name, used.dataset.digest) == ("measurements", datasets.find("measurements").digest)


def check_ray_data_search(left: Left) -> None:
    assert left.printed("Best rate") == 0.3
    assert [child.data.params["rate"] for child in left.children] == ["0.01", "0.3"]
    sums = {child.data.metrics["train_ids"] + child.data.metrics["validation_ids"] for child in left.children}
    assert sums == {sum(TRAINING)}, "a trial with one worker did not see every row once"
    parts = {child.data.metrics["validation_ids"] for child in left.children}
    assert len(parts) == 1, "the trials validated on different rows"


def check_tune_function(left: Left) -> None:
    assert left.printed("Alone") == [1.0, 1.0], "the same function did not train without a search"
    assert left.printed("Best config") == {"input": 3, "epochs": 2}
    assert left.printed("Trials") == [1.0, 2.0, 3.0]
    assert len(left.children) == 3
    for child in left.children:
        expected = float(child.data.params["input"])
        assert left.points("output", child) == [(0, expected), (1, expected)]
        assert left.points("ranks", child) == [(0, 2), (1, 2)], "a trial did not have two workers"
        assert child.info.status == "FINISHED"


def check_pbt(left: Left) -> None:
    lineages = left.printed("Lineages")
    (taken,) = left.printed("Replaced")
    (better,) = lineages.keys() - {taken}
    assert lineages[better] == [better] * 6, "the better trial was disturbed"
    # It copies after two steps and again after four, because half of the better trial's rate is still too slow.
    assert lineages[taken] == [better] * 4 + [taken] * 2, "it did not continue from the other's checkpoint"
    assert left.printed("Scores") == {better: 24.0, taken: 20.0}
    runs = {child.data.tags["mlplatform.trial_id"]: child for child in left.children}
    assert len(left.children) == len(runs) == 2, "a trial that copied a checkpoint has a second run"
    assert {child.info.status for child in left.children} == {"FINISHED"}
    assert left.points("score", runs[better]) == [(step, 4.0 * step) for step in range(1, 7)]
    rates = [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0), (5, 2.0), (6, 2.0)]
    assert left.points("rate", runs[taken]) == rates, "the settings did not change when the trial copied them"
    assert left.points("score", runs[taken]) == [(1, 1.0), (2, 2.0), (3, 10.0), (4, 12.0), (5, 18.0), (6, 20.0)]


def check_tune_digits(left: Left) -> None:
    assert left.run.info.status == "FINISHED"
    assert "val_accuracy" not in left.run.data.metrics
    runs = left.children
    assert len(runs) == 8
    ends = {run.info.run_id: run.data.tags["mlplatform.trial_end"] for run in runs}
    assert set(ends.values()) == {"completed", "early-stopped"}
    for run in runs:
        assert run.info.status == "FINISHED"
        assert {"lr", "width"} <= run.data.params.keys()
        steps = [step for step, _ in left.points("val_accuracy", run)]
        assert steps == list(range(len(steps)))
        assert (len(steps) < 12) == (ends[run.info.run_id] == "early-stopped")
        assert any(f"/tune/{run.data.tags['mlplatform.trial_id']}/checkpoint_" in file for file in left.stored)
    champion = left.client.get_model_version_by_alias("digits-tuned", "champion").run_id
    (best,) = [run for run in runs if run.info.run_id == champion]
    assert best.data.metrics["val_accuracy"] == max(run.data.metrics["val_accuracy"] for run in runs)
    assert best.data.metrics["test_accuracy"] >= 0.85
    assert "models:/digits-tuned@champion" in left.log


LESSONS = [
    Lesson(
        "tune_digits.py",
        "Each trial is a child run, poor ones are stopped early, and the model of the best one is registered.",
        check_tune_digits,
        ["--trials=8", "--cpus=0.5"],
    ),
    Lesson(
        "train/checkpoints.py",
        "Checkpoints are saved and loaded, the best are kept, a failed worker loses nothing, a run starts from any.",
        check_checkpoints,
    ),
    Lesson(
        "train/checkpoints.py",
        "Without retries, the first failure of a worker ends the job with its error.",
        check_no_retries,
        ["--max-failures", "0"],
        status="FAILED",
    ),
    Lesson(
        "train/checkpoints.py",
        "A training survives as many failures of its workers as it may, one after another.",
        check_three_failures,
        ["--max-failures=3", "--failures=3"],
    ),
    Lesson(
        "train/elastic.py",
        "A group shrinks and grows with the free resources; every completed epoch has seen each row once.",
        check_elastic,
    ),
    Lesson(
        "train/elastic.py",
        "A number of rows that a group size does not divide is rejected with a message.",
        check_elastic_refusal,
        ["--rows=121"],
        status="FAILED",
    ),
    Lesson(
        "train/ray_data.py",
        "CSV and Parquet are filtered, split and sharded, each row once per epoch; more than memory holds is streamed.",
        check_ray_data,
        ["--times", "1.2"],
        prepare=put_measurements,
    ),
    Lesson(
        "train/ray_data.py",
        "A search runs over training fed by Ray Data.",
        check_ray_data_search,
        ["--rates", "0.01", "0.3", "--workers", "1"],
        prepare=put_measurements,
    ),
    Lesson(
        "train/tune_function.py",
        "A search runs an unmodified training function, with two workers and one child run per trial.",
        check_tune_function,
    ),
    Lesson(
        "train/pbt.py",
        "A poor trial continues from another's checkpoint with changed settings, and remains one child run.",
        check_pbt,
    ),
]
