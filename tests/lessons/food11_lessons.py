"""What the lessons of `jobs/food11` that need no Ray leave behind, on the stand-in of `stand_in.py`."""

from __future__ import annotations

import json

import stand_in
from lesson import Left, Lesson

SMALL = ("--epochs=1", "--size=32")
# Threads of several processes on two cores spend their time waiting for each other; and MLflow would import torch once
# more, to find out what a logged model needs.
QUICK = {"env": {"OMP_NUM_THREADS": "1", "MLFLOW_REQUIREMENTS_INFERENCE_TIMEOUT": "1"}}
MEASURED = ("epoch_time", "train_loss", "train_accuracy", "val_loss", "val_accuracy", "trainable_params")


def plain(left: Left) -> None:
    head, whole, test = left.said("epoch 0"), left.said("epoch 1"), left.said("test")
    assert set(head) == set(whole) == set(MEASURED)
    assert 0 < head["trainable_params"] < whole["trainable_params"], "first the last layer, then everything"
    # Shares of the photos that the stand-in has.
    right = test["test_accuracy"] * 11 * stand_in.FEW["evaluation"]
    assert abs(right - round(right)) < 1e-6, "every photo of the evaluation was tested, once"
    assert not left.runs, "it has never heard of MLflow"


def tracked(left: Left) -> None:
    run = left.run
    assert run.info.status == "FINISHED"
    assert run.data.params["epochs"] == "3"
    assert run.data.params["size"] == "32"
    for metric in MEASURED:
        expected = [(epoch, left.said(f"epoch {epoch}")[metric]) for epoch in range(4)]
        assert left.points(metric) == expected, f"{metric} of each epoch, as printed"
    assert left.points("system/cpu_utilization_percentage"), "metrics of the machine"
    assert {"test_loss", "test_accuracy"} <= run.data.metrics.keys()
    assert left.text("gpu-info.txt").strip()
    assert "0 loader processes, 32 pixels" in run.data.tags["mlflow.note.content"]
    assert len(run.data.tags["mlflow.source.git.commit"]) == 40, "the commit of the lesson's folder"

    models = left.client.search_logged_models(
        [run.info.experiment_id], filter_string=f"source_run_id = '{run.info.run_id}'"
    )
    assert {(model.name, str(model.status)) for model in models} == {("food11", "READY")}
    losses = [loss for _, loss in left.points("val_loss")][1:]
    improved = sum(loss < min(losses[:epoch], default=float("inf")) for epoch, loss in enumerate(losses))
    assert len(models) == improved, "a model whenever validation improved, once the whole network was trained"
    for model in models:
        assert left.log.count(f"New best model: {model.model_uri}") == 1


def flavors(left: Left) -> None:
    assert left.said("same answers") == {"pytorch_model": True, "sklearn_model": True, "transformers_model": True}
    assert json.loads(left.text("same_answers.json")) == left.said("same answers")
    assert left.run.data.metrics["sklearn_accuracy"] > 0.8
    models = left.client.search_logged_models(
        [left.run.info.experiment_id], filter_string=f"source_run_id = '{left.run.info.run_id}'"
    )
    assert {model.name for model in models} == {"pytorch", "sklearn", "transformers"}


def slow_loader(left: Left) -> None:
    slow, quick = left.children
    assert [run.data.params["num_workers"] for run in (slow, quick)] == ["0", "4"]
    for run in (slow, quick):
        assert run.info.status == "FINISHED"
        assert [step for step, _ in left.points("epoch_time", run)] == [0, 1]
        assert left.points("system/cpu_utilization_percentage", run)
    shares = [run.data.metrics["waiting_share"] for run in (slow, quick)]
    assert shares[0] > shares[1], f"loader processes shorten what the training waits for: {shares}"

    assert left.artifacts() == {"comparison.png", "comparison.json"}
    table = json.loads(left.text("comparison.json"))
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    for row, run in zip(rows, (slow, quick), strict=True):
        for metric in ("epoch_time", "waiting_share", "system/cpu_utilization_percentage"):
            values = [value for _, value in left.points(metric, run)]
            assert abs(row[metric] - sum(values) / len(values)) < 1e-9, f"the table holds what the run logged: {metric}"
    assert left.run.data.metrics["speedup"] > 1.1, "loader processes help"


LESSONS = [
    Lesson("food11/plain.py", "a script that knows nothing of the platform is a job", plain, SMALL, options=QUICK),
    Lesson(
        *("food11/tracked.py", "calls of MLflow as the tutorial has them leave everything in one run", tracked),
        ("--epochs=3", "--size=32"),
        options=QUICK,
    ),
    Lesson("food11/flavors.py", "models of three libraries are logged and come back as they were", flavors),
    Lesson(
        *("food11/slow_loader.py", "two runs are compared from what they logged", slow_loader),
        ("--photos=128", "--delay=0.05"),
        options=QUICK,
    ),
]
