"""Checks of the lessons in `jobs/food11` that do not use Ray, on the small data set of `stand_in.py`."""

from __future__ import annotations

import json
import re
from statistics import fmean

import stand_in
from lesson import Left, Lesson

SMALL = ("--epochs=1", "--size=32")
# On two cores, the threads of several processes mostly wait for each other. Without the timeout, MLflow imports torch
# again to infer the requirements of a logged model.
QUICK = {"env": {"OMP_NUM_THREADS": "1", "MLFLOW_REQUIREMENTS_INFERENCE_TIMEOUT": "1"}}
MEASURED = ("epoch_time", "train_loss", "train_accuracy", "val_loss", "val_accuracy", "trainable_params")


def plain(left: Left) -> None:
    head, whole, test = left.printed("epoch 0"), left.printed("epoch 1"), left.printed("test")
    assert set(head) == set(whole) == set(MEASURED)
    assert 0 < head["trainable_params"] < whole["trainable_params"], "the last layer first, then the whole network"
    # Accuracies are fractions of the stand-in's photos.
    right = test["test_accuracy"] * 11 * stand_in.FEW["evaluation"]
    assert abs(right - round(right)) < 1e-6, "every evaluation photo was tested once"
    assert not left.runs, "the script does not use MLflow"


def tracked(left: Left) -> None:
    run = left.run
    assert run.info.status == "FINISHED"
    assert run.data.params["epochs"] == "3"
    assert run.data.params["size"] == "32"
    for metric in MEASURED:
        expected = [(epoch, left.printed(f"epoch {epoch}")[metric]) for epoch in range(4)]
        assert left.points(metric) == expected, f"{metric} of each epoch, as printed"
    assert left.points("system/cpu_utilization_percentage"), "system metrics"
    assert {"test_loss", "test_accuracy"} <= run.data.metrics.keys()
    # The memory of a GPU in the table of nvidia-smi or rocm-smi, or that there is neither.
    assert re.search(r"MiB|VRAM|No GPU: neither nvidia-smi nor", left.text("gpu-info.txt"))
    assert "0 loader processes, 32 pixels" in run.data.tags["mlflow.note.content"]
    assert len(run.data.tags["mlflow.source.git.commit"]) == 40, "the commit of the lesson's folder"

    models = left.models
    assert {(model.name, str(model.status)) for model in models} == {("food11", "READY")}
    losses = [loss for _, loss in left.points("val_loss")][1:]
    improved = sum(loss < min(losses[:epoch], default=float("inf")) for epoch, loss in enumerate(losses))
    why = "one model per improvement of the validation loss, after the last layer's own epochs"
    assert len(models) == improved, why
    for model in models:
        assert left.log.count(f"New best model: {model.model_uri}") == 1


def flavors(left: Left) -> None:
    assert left.printed("same answers") == {"pytorch_model": True, "sklearn_model": True, "transformers_model": True}
    assert json.loads(left.text("same_answers.json")) == left.printed("same answers")
    assert left.run.data.metrics["sklearn_accuracy"] > 0.8
    assert {model.name for model in left.models} == {"pytorch", "sklearn", "transformers"}


def slow_loader(left: Left) -> None:
    slow, quick = left.children
    assert [run.data.params["num_workers"] for run in (slow, quick)] == ["0", "4"]
    for run in (slow, quick):
        assert run.info.status == "FINISHED"
        assert [step for step, _ in left.points("epoch_time", run)] == [0, 1]
        assert left.points("system/cpu_utilization_percentage", run)
    # Means, because beside another job a single epoch may compute for as long as it waits.
    shares = [fmean(value for _, value in left.points("waiting_share", run)) for run in (slow, quick)]
    assert shares[0] > shares[1], f"loader processes reduce the time spent waiting: {shares}"

    assert left.artifacts() == {"comparison.png", "comparison.json"}
    table = json.loads(left.text("comparison.json"))
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    for row, run in zip(rows, (slow, quick), strict=True):
        for metric in ("epoch_time", "waiting_share", "system/cpu_utilization_percentage"):
            values = [value for _, value in left.points(metric, run)]
            assert abs(row[metric] - fmean(values)) < 1e-9, f"the table contains the logged values: {metric}"
    assert left.run.data.metrics["speedup"] > 1.1, "loader processes speed up training"


LESSONS = [
    Lesson("food11/plain.py", "A script without any platform code runs as a job.", plain, SMALL, options=QUICK),
    Lesson(
        *("food11/tracked.py", "MLflow calls as in the tutorial log everything to one run.", tracked),
        ("--epochs=3", "--size=32"),
        options=QUICK,
        always=True,
    ),
    Lesson("food11/flavors.py", "Models of three libraries are logged and reloaded unchanged.", flavors),
    Lesson(
        *("food11/slow_loader.py", "Two runs are compared by their logged metrics.", slow_loader),
        ("--photos=128", "--delay=0.05"),
        options=QUICK,
    ),
]
