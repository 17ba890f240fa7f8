import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from mlplatform.contract import REPORT
from mlplatform.local.instance import Home, Instance
from mlplatform.local.programs import common_environment
from mlplatform.settings.job import settings
from mlplatform.tracking.metrics import RunSink
from mlplatform.tracking.outbox import Outbox
from mlplatform.training.history import HistorySink, history
from mlplatform.training.reports import Reports, aggregated, numbers, step_of
from mlplatform.training.workers import plain

pytestmark = pytest.mark.usefixtures("clean_environment")

NO_CHECKPOINT = SimpleNamespace(checkpoint=None)


@pytest.fixture
def storage_folder(clean_environment: None, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MLPLATFORM_STORAGE", str(tmp_path))
    monkeypatch.setenv("MLPLATFORM_JOB_ID", "job")
    settings.cache_clear()
    yield tmp_path
    settings.cache_clear()


@pytest.fixture
def reports(storage_folder: Any) -> Iterator[Reports]:
    uri = f"{storage_folder}/job/fit"
    reports = Reports("fit", uri, history=Outbox(HistorySink(uri)), metrics=None)
    yield reports
    # Stop its thread, which reads settings that the next test changes.
    reports._close()


@pytest.mark.parametrize(
    ("values", "step"),
    [
        *[({"step": 40, "epoch": 2}, 40), ({"epoch": 2}, 2), ({"loss": 1}, 7), ({}, 7)],
        *[({"step": None, "epoch": 2}, 2), ({"epoch": float("nan")}, 7), ({"step": "third"}, 7)],
    ],
)
def test_report_is_plotted_at_step_epoch_or_count(values: dict[str, float], step: int) -> None:
    assert step_of(values, reports=7) == step


def test_only_numbers_are_plotted() -> None:
    reported = {"loss": 0.5, "epoch": 1, "f32": np.float32(2), "name": "a", "done": True, "list": [1], "step": 3}
    assert numbers(reported) == {"loss": 0.5, "epoch": 1.0, "f32": 2.0}


@pytest.mark.parametrize(("how", "loss"), [("rank0", 1.0), ("mean", 2.0), ("max", 3.0)])
def test_rank_metrics_are_aggregated_as_configured(how: Any, loss: float) -> None:
    ranks = [{"loss": 1.0, "epoch": 4, "name": "a"}, {"loss": 3.0, "epoch": 4, "name": "b"}]
    assert aggregated(ranks, how) == {"loss": loss, "epoch": 4, "name": "a"}


def test_metric_missing_on_rank_0_is_aggregated() -> None:
    assert aggregated([{"loss": 1.0}, {"loss": 2.0, "seen": 5}], "mean") == {"loss": 1.5, "seen": 5.0}


def test_each_report_is_one_log_line(reports: Reports, capsys: pytest.CaptureFixture[str]) -> None:
    reports.after_report(NO_CHECKPOINT, [{"loss": 0.5}, {"loss": 9.0}])
    reports.after_report(NO_CHECKPOINT, [{"loss": 0.25}, {"loss": 9.0}])
    lines = [line.partition("mlplatform report ")[2] for line in capsys.readouterr().out.splitlines()]
    parsed = [json.loads(line) for line in lines]
    shown = [(line["run"], line["loss"], line["step"], line["training_iteration"]) for line in parsed]
    assert shown == [("fit", 0.5, 0, 1), ("fit", 0.25, 1, 2)]


def test_similar_report_lines_are_not_deduplicated(tmp_path: Path) -> None:
    from ray._private import ray_constants, ray_logging

    instance = Instance("1", "http://127.0.0.1:1", "http://127.0.0.1:2", "/tmp/ray")
    embedded = common_environment(Home(tmp_path), instance)
    allowed = embedded["RAY_DEDUP_LOGS_ALLOW_REGEX"]
    base = yaml.safe_load((Path(__file__).parents[3] / "compose" / "base.yaml").read_text())
    assert allowed == base["services"]["ray"]["environment"]["RAY_DEDUP_LOGS_ALLOW_REGEX"]
    assert ray_constants.TESTING_NEVER_DEDUP_TOKEN in allowed, "Ray's default is missing"

    deduplicator = ray_logging.LogDeduplicator(5, allowed, None)
    lines = [f'{REPORT} {{"run": "fit", "loss": 0.{pid}}}' for pid in (1, 2, 3)]
    batches = [{"ip": "127.0.0.1", "pid": pid, "lines": [line]} for pid, line in enumerate(lines)]
    shown = [line for batch in batches for out in deduplicator.deduplicate(batch) for line in out["lines"]]
    assert shown == lines


def test_history_contains_reports_without_checkpoint(reports: Reports) -> None:
    for loss in (0.5, 0.25):
        reports.after_report(NO_CHECKPOINT, [{"loss": loss, "note": "text stays"}])
    reports._close()
    assert [(line["loss"], line["note"]) for line in history("fit")] == [(0.5, "text stays"), (0.25, "text stays")]


def test_history_contains_replayed_report_once(reports: Reports) -> None:
    for losses in ((0.5, 0.4), (0.3, 0.2, 0.1)):
        reports.before_worker_group_start(None)
        for loss in losses:
            reports.after_report(NO_CHECKPOINT, [{"loss": loss}])
    reports._close()
    assert [line["loss"] for line in history("fit")] == [0.5, 0.4, 0.1]


def test_repeated_step_keeps_history_and_warns_once(reports: Reports, caplog: pytest.LogCaptureFixture) -> None:
    for epoch, loss in ((0, 0.5), (0, 0.4), (1, 0.3), (1, 0.2)):
        reports.after_report(NO_CHECKPOINT, [{"epoch": epoch, "loss": loss}])
    reports._close()
    assert [line["loss"] for line in history("fit")] == [0.5, 0.4, 0.3, 0.2]
    (warning,) = [record.message for record in caplog.records]
    start = "loss is reported for step 0 after step 0, and MLflow keeps only the first value of a step"
    assert warning.startswith(start)


def test_reports_of_different_metrics_may_share_step(reports: Reports, caplog: pytest.LogCaptureFixture) -> None:
    for epoch in range(2):
        reports.after_report(NO_CHECKPOINT, [{"epoch": epoch, "train_loss": 1}])
        reports.after_report(NO_CHECKPOINT, [{"epoch": epoch, "val_loss": 2}])
    assert not caplog.records


def test_non_json_values_are_stored_as_text(reports: Reports) -> None:
    reports.after_report(NO_CHECKPOINT, [{"loss": 0.5, "where": Path("/data")}])
    reports._close()
    assert [line["where"] for line in history("fit")] == ["/data"]


def test_checkpoint_hands_unsent_points_to_next_attempt(storage_folder: Any) -> None:
    from ray.train import Checkpoint

    def new() -> tuple[Reports, Outbox]:
        uri = f"{storage_folder}/job/fit"
        # Nothing listens on this port, as during an outage of MLflow.
        metrics = Outbox(RunSink("run", "http://127.0.0.1:1"))
        return Reports("fit", uri, history=Outbox(HistorySink(uri)), metrics=metrics), metrics

    reports, metrics = new()
    checkpoint = Checkpoint(str(storage_folder))
    reports.after_report(NO_CHECKPOINT, [{"loss": 0.5}])
    reports.after_report(SimpleNamespace(checkpoint=checkpoint), [{"loss": 0.25}])
    reports.after_report(NO_CHECKPOINT, [{"loss": 0.125}])
    sent = [(point.key, point.value, point.step) for point in metrics.pending()]
    assert sent == [("loss", 0.5, 0), ("loss", 0.25, 1), ("loss", 0.125, 2)]

    again, rest = new()
    again._send_again(checkpoint.get_metadata()["mlplatform.unsent"])
    assert rest.pending() == metrics.pending()[:2], "the points or their timestamps differ"
    for each in (reports, again):
        each._close(timeout_s=0.1)


def test_tracking_error_does_not_end_training(reports: Reports, caplog: pytest.LogCaptureFixture) -> None:
    reports.after_report(NO_CHECKPOINT, [])
    assert "the training continues" in caplog.text


def test_numpy_and_torch_metrics_become_python_values() -> None:
    metrics = {"a": np.float32(0.5), "b": np.int64(3), "c": np.array([1, 2]), "d": 1.5, "e": "text"}
    values = plain(metrics)
    assert values == {"a": 0.5, "b": 3, "c": [1, 2], "d": 1.5, "e": "text"}
    json.dumps(values)
