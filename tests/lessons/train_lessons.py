"""Checks of the lessons in `jobs/train` on configurations, reports, callbacks, results and backends."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from lesson import Left, Lesson
from sklearn.datasets import load_digits
from sklearn.metrics import f1_score, fbeta_score, precision_score, recall_score


def each_config_gives_a_result_of_every_rank(left: Left) -> None:
    assert left.printed("Epochs of each rank, same points") == [[0, 1], [0, 1]]
    assert left.printed("Epochs of each rank, own points") == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]

    same, own = left.printed("Losses of each rank, same points"), left.printed("Losses of each rank, own points")
    assert same[0] == same[1], "the same points and weights give the same loss"
    assert [len(losses) for losses in own] == [5, 5]
    assert all(one != other for one, other in zip(*own, strict=True)), "each rank has different points"
    for points in ("same", "own"):
        one, other = left.printed(f"Weights of each rank, {points} points")
        assert one == other, "DDP keeps the weights of all ranks equal"
        rows = left.printed(f"Rows of each rank, {points} points")
        assert sorted(rows[0] + rows[1]) == list(range(10)), "DistributedSampler gives each rank its share"
        assert len(rows[0]) == len(rows[1])
    assert len(left.runs) == 1


def reports_are_kept_as_asked(left: Left) -> None:
    first, size = np.array([0, 599]), np.array([599, 1198])
    true = []
    """F1 over all guesses and over those of each rank, computed in one process by another library."""
    others: list[dict[str, float]] = []
    for epoch in range(3):
        labels = load_digits().target
        random = np.random.default_rng(epoch)
        wrong = random.random(len(labels)) < 0.5 ** (epoch + 1)
        guesses = np.where(wrong, random.integers(10, size=len(labels)), labels)
        parts = [slice(None), *(slice(begin, begin + length) for begin, length in zip(first, size, strict=True))]
        true.append([f1_score(labels[part], guesses[part], average="macro") for part in parts])
        precision, recall = (score(labels, guesses, average="macro") for score in (precision_score, recall_score))
        f_half = fbeta_score(labels, guesses, beta=0.5, average="macro")
        others.append({"precision": precision, "recall": recall, "f_half": f_half})

    aggregates = {"rank0": lambda ranks: ranks[0], "mean": lambda ranks: sum(ranks) / 2}
    for name, aggregate in aggregates.items():
        kept = left.printed(f"Kept with {name}")
        assert [report["epoch"] for report in kept] == [0, 1, 2]
        assert [report["training_iteration"] for report in kept] == [1, 2, 3]
        stamps = [report["timestamp"] for report in kept]
        assert stamps == sorted(stamps)
        assert stamps[0] > left.run.info.start_time / 1000
        assert all(report["time_this_iter_s"] >= 0 for report in kept)
        for report, (f1, *of_ranks) in zip(kept, true, strict=True):
            assert abs(report["f1"] - f1) < 1e-6, "TorchMetrics counts over all ranks"
            assert abs(report["f1_of_rank"] - aggregate(of_ranks)) < 1e-6
            assert abs(report["f1"] - sum(of_ranks) / 2) > 1e-6, "it is not the mean of the ranks' scores"
            assert report["images"] == aggregate([599, 1198])
        for report, expected in zip(kept, others, strict=True):
            for metric, value in expected.items():
                assert abs(report[metric] - value) < 1e-6, f"{metric} counts over all ranks"

        live = left.printed(f"Live with {name}")
        # On a busy machine, the driver may receive the last report after training has ended.
        assert all(report["running"] for report in live[:-1]), "reports arrived during training"
        assert [[rank["epoch"] for rank in report["ranks"]] for report in live] == [[0, 0], [1, 1], [2, 2]]
        assert [[rank["images"] for rank in report["ranks"]] for report in live] == [[599, 1198]] * 3

        # In MLflow, metrics of a job's first training run have no prefix; those of the second have its name as prefix.
        prefix = "" if name == "rank0" else f"{name}/"
        assert left.points(f"{prefix}f1_of_rank") == [(r["epoch"], r["f1_of_rank"]) for r in kept]

    assert all("ranks" not in report for report in left.printed("Kept with rank0"))
    detailed = left.printed("Kept with mean")
    for number, report in enumerate(detailed, 1):
        assert report["job_id"] == left.job.id
        assert report["iterations_since_restore"] == number
        assert report["time_since_restore"] > 0
        assert [rank["images"] for rank in report["ranks"]] == [599, 1198]
        assert all(rank["hostname"] for rank in report["ranks"])
        assert len({rank["pid"] for rank in report["ranks"]}) == 2
    # The last report is marked done when Train's controller ends, before `fit()` returns.
    assert [report.get("done") for report in detailed] == [None, None, True]


def callbacks_leave_readable_files(left: Left, name: str = "logs") -> None:
    expected = [[{"epoch": epoch, "loss": (rank + 1) / 2**epoch} for rank in range(2)] for epoch in range(3)]
    base = f"{name}/attempt-1"
    folder = f"/{name}/{left.job.id}/attempt-1:"
    assert any(line.endswith(folder) for line in left.lines), "one folder per job and attempt"
    lines = left.text(f"{base}/train/reports.jsonl").splitlines()
    assert [json.loads(line) for line in lines] == expected
    rows = list(csv.DictReader(io.StringIO(left.text(f"{base}/train/reports.csv"))))
    assert [(int(row["rank"]), int(row["epoch"]), float(row["loss"])) for row in rows] == [
        (rank, values["epoch"], values["loss"]) for ranks in expected for rank, values in enumerate(ranks)
    ]
    assert curve(left, f"{base}/train/rank1", "loss") == [(0, 2.0), (1, 1.0), (2, 0.5)]
    printed = [line.partition("Ranks reported: ")[2] for line in left.lines if "Ranks reported: " in line]
    assert [json.loads(line) for line in printed] == expected

    heights = {}
    for child in left.children:
        trial = f"{base}/tune/{child.data.tags['mlplatform.trial_id']}"
        reports = [json.loads(line) for line in left.text(f"{trial}/result.json").splitlines()]
        height = reports[0]["config"]["height"]
        assert [report["loss"] for report in reports] == [height, height / 2, height / 4]
        rows = list(csv.DictReader(io.StringIO(left.text(f"{trial}/progress.csv"))))
        assert [float(row["loss"]) for row in rows] == [height, height / 2, height / 4]
        assert curve(left, trial, "ray/tune/loss") == [(1, height), (2, height / 2), (3, height / 4)]
        heights[height] = left.points("loss", child)
    assert heights == {height: [(epoch, height / 2**epoch) for epoch in range(3)] for height in (1.0, 3.0)}
    assert left.points("loss") == [(0, 1.0), (1, 0.5), (2, 0.25)], "the platform's own tracking continues"
    assert len(left.runs) == 3, "one run for the job and one per trial"


def callbacks_write_to_given_folder(left: Left) -> None:
    callbacks_leave_readable_files(left, "diary")
    assert f"Written to /tmp/diaries/diary/{left.job.id}/attempt-1:" in left.lines


def curve(left: Left, folder: str, tag: str) -> list[tuple[int, float]]:
    """Read (step, value) pairs of a TensorBoard curve from the run's artifacts."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with TemporaryDirectory() as place:
        path = left.client.download_artifacts(left.run.info.run_id, folder, place)
        (file,) = Path(path).glob("events.out.tfevents.*")
        return [(event.step, event.value) for event in EventAccumulator(str(file)).Reload().Scalars(tag)]


def results_tell_all(left: Left) -> None:
    reports = left.printed("All reports")
    accuracies = [report["val_accuracy"] for report in reports]
    assert [report["epoch"] for report in reports] == [0, 1, 2, 3]
    # 1,497 images: 749 per rank, in batches of 32 per rank (a global batch of 64).
    assert [report["steps"] for report in reports] == [24] * 4
    assert max(accuracies) > 0.8
    last = left.printed("Metrics of the last checkpoint")
    assert last == {key: reports[-1][key] for key in ("epoch", "steps", "val_accuracy")}

    kept = left.printed("Epochs whose checkpoints were kept")
    assert sorted(accuracies[epoch] for epoch in kept)[-2:] == sorted(accuracies)[-2:], "the best two"
    assert len(kept) in (2, 3)
    table = left.printed("Table of the kept checkpoints")
    assert sorted(row["epoch"] for row in table) == kept
    assert all(abs(row["val_accuracy"] - accuracies[row["epoch"]]) < 1e-9 for row in table)
    folders = {path.split("/")[-2] for path in left.stored if path.endswith("state.pt")}
    # The last one is also kept if it is not among the best, because a restart resumes from it.
    assert len(folders) == len({*kept, 3}), "storage has exactly the kept checkpoints"
    assert left.printed("Error") is None
    (folder,) = [line.removeprefix("Folder: ") for line in left.lines if line.startswith("Folder: ")]
    (last_checkpoint,) = [line.removeprefix("Last checkpoint: ") for line in left.lines if line.startswith("Last ch")]
    assert last_checkpoint.startswith(f"{folder}/checkpoint_"), "the result's path contains its checkpoints"
    assert any("Prepared: DistributedDataParallel on cpu" in line for line in left.lines), "wrapped, on its device"
    assert any("Process group backend: gloo" in line for line in left.lines), "the backend set in TorchConfig"
    assert left.printed("Accuracy of the best checkpoint, predicted in the driver") == max(accuracies)

    assert list(left.printed("Failed ranks")) == ["1"]
    assert "This rank fails on purpose." in left.printed("Failed ranks")["1"]
    failed = left.printed("Reports of the failed run")
    assert [(report["epoch"], report["loss"]) for report in failed] == [(0, 1.0), (1, 0.5)]
    assert len(left.runs) == 1


def a_backend_of_its_own_connects_the_workers(left: Left) -> None:
    assert left.printed("Backend sees ranks") == [0, 1]
    assert any("Backend started for 2 workers." in line for line in left.lines)
    assert any("Backend shut down." in line for line in left.lines)
    assert left.printed("Totals") == [3, 30, 300]
    reports = [report for report in left.reports if not report.get("done")]
    # The total is on every rank, not only on the one that computed it.
    assert [[rank["total"] for rank in report["ranks"]] for report in reports] == [[3, 3], [30, 30], [300, 300]]
    assert [[rank["own"] for rank in report["ranks"]] for report in reports] == [[1, 2], [10, 20], [100, 200]]


LESSONS = [
    Lesson(
        "train/configs.py",
        "One function runs with two configurations in one job, with the results of every rank.",
        each_config_gives_a_result_of_every_rank,
    ),
    Lesson(
        "train/reports.py",
        "Reports have their fields, are aggregated over ranks, include TorchMetrics, and are read live in the driver.",
        reports_are_kept_as_asked,
        always=True,
    ),
    Lesson(
        "train/callbacks.py",
        "Train and Tune write JSON, CSV and TensorBoard files as artifacts, without duplicate runs.",
        callbacks_leave_readable_files,
        always=True,
    ),
    Lesson(
        "train/callbacks.py",
        "The same with a different name and folder.",
        callbacks_write_to_given_folder,
        ("--name=diary", "--place=/tmp/diaries"),
    ),
    Lesson(
        "train/results.py",
        "A result, all reports without it, the error of a failed run, and predictions from a checkpoint.",
        results_tell_all,
    ),
    Lesson(
        "train/backend.py",
        "A custom backend connects the workers before the training function starts.",
        a_backend_of_its_own_connects_the_workers,
    ),
]
