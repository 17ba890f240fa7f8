import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mlplatform.tracking.metrics import RunSink
from mlplatform.tuning.callback import TrialCallback, _points, _step, reported, was_cut
from mlplatform.tuning.search import _is_begun
from mlplatform.tuning.trial_runs import TrialRuns

pytestmark = pytest.mark.usefixtures("clean_environment")

RESULT = {
    "loss": np.float32(0.5),
    "val": {"accuracy": 0.75},
    "note": "warm",
    "training_iteration": 4,
    "timestamp": 1000,
    "time_total_s": 2.5,
    "pid": 17,
    "done": False,
    "trial_id": "abc_00000",
    "config": {"lr": 0.1},
}


def test_fields_added_by_ray_are_not_reported() -> None:
    assert reported(RESULT) == {"loss": 0.5, "val/accuracy": 0.75, "note": "warm"}


@pytest.mark.parametrize(("own", "step"), [({"step": 40, "epoch": 2}, 40), ({"epoch": 2}, 2), ({}, 3)])
def test_trial_report_is_plotted_at_step_epoch_or_count(own: dict[str, int], step: int) -> None:
    assert _step({**RESULT, **own}) == step


def test_restored_report_keeps_its_timestamp() -> None:
    points = _points(RESULT)
    assert {(point.key, point.value, point.step, point.timestamp) for point in points} == {
        ("loss", 0.5, 3, 1_000_000),
        ("val/accuracy", 0.75, 3, 1_000_000),
    }


@pytest.mark.parametrize(
    ("result", "criteria", "length", "cut"),
    [
        ({"done": True, "epoch": 3}, {}, None, True),
        ({"done": False, "epoch": 3}, {}, None, False),
        ({"done": True, "epoch": 10}, {"epoch": 10}, None, False),
        ({"done": True, "epoch": 3}, {"epoch": 10}, None, True),
        ({"done": True, "val": {"loss": 9.0}}, {"val/loss": 9}, None, False),
        ({"done": True, "training_iteration": 100}, {}, ("training_iteration", 100), False),
        ({"done": True, "training_iteration": 16}, {}, ("training_iteration", 100), True),
    ],
)
def test_completed_trial_is_not_early_stopped(
    result: dict[str, Any], criteria: dict[str, float], length: tuple[str, int] | None, cut: bool
) -> None:
    assert was_cut(result, criteria, length) is cut


def test_pickled_callback_excludes_trials() -> None:
    callback = TrialCallback("search", "run", ("epoch", 5))
    callback._open.add("abc_00000")
    restored = pickle.loads(pickle.dumps(callback))  # noqa: S301 - our own bytes
    assert (restored._name, restored._parent, restored.length, restored._open) == ("search", "run", ("epoch", 5), set())


def test_tracking_error_does_not_end_search(caplog: pytest.LogCaptureFixture) -> None:
    TrialCallback("search", None).on_trial_start(iteration=0, trials=[], trial=None)
    assert "the search continues" in caplog.text


def test_search_without_snapshot_starts_over(tmp_path: Any) -> None:
    from pyarrow.fs import LocalFileSystem

    folder = tmp_path / "search"
    assert not _is_begun(LocalFileSystem(), str(folder))
    folder.mkdir()
    (folder / "tuner.pkl").touch()
    assert not _is_begun(LocalFileSystem(), str(folder))
    (folder / "experiment_state-2026-11-21_00-00-00.json").touch()
    assert _is_begun(LocalFileSystem(), str(folder))


class AbsentOnce:
    """An MLflow with one run that is unavailable when parameters are first sent."""

    def __init__(self, error: Exception) -> None:
        self.error: Exception | None = error
        self.params: dict[str, str] = {}

    def log_batch(self, run_id: str, params: Any) -> None:
        error, self.error = self.error, None
        if error:
            raise error
        self.params.update({param.key: param.value for param in params})

    def set_tag(self, *_: Any) -> None:
        """Ignore tags."""


def trial_runs(client: AbsentOnce, monkeypatch: pytest.MonkeyPatch) -> TrialRuns:
    found = SimpleNamespace(
        info=SimpleNamespace(run_id="1", status="RUNNING"), data=SimpleNamespace(tags={}, params=client.params)
    )
    monkeypatch.setattr(RunSink, "open", lambda self: None)
    monkeypatch.setattr(TrialRuns, "find", lambda self, trial_id: found)
    runs = TrialRuns("parent", "search", None)
    runs._client = client  # type: ignore[assignment]
    return runs


def test_trial_parameters_are_sent_after_brief_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    client = AbsentOnce(ConnectionError("unavailable"))
    runs = trial_runs(client, monkeypatch)
    start = [lambda runs: runs.start("a", "a", {"lr": 0.1})]
    with pytest.raises(ConnectionError):
        runs.send(start)
    runs.send(start)
    assert client.params == {"lr": "0.1"}


def test_rejected_parameters_do_not_lose_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowException
    from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

    runs = trial_runs(AbsentOnce(MlflowException("no", INVALID_PARAMETER_VALUE)), monkeypatch)
    runs.send([lambda runs: runs.start("a", "a", {"lr": 0.1})])
    assert list(runs._sinks) == ["a"]
