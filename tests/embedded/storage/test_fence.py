"""A replaced attempt writes no reports, metrics or run status; tested with a real folder and a real SQLite."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_for

from mlplatform import contract
from mlplatform.errors import FencedError
from mlplatform.settings import job
from mlplatform.tracking import run as tracking_run
from mlplatform.tracking.metrics import Point, RunSink
from mlplatform.tracking.outbox import Outbox
from mlplatform.training.history import HistorySink, history
from mlplatform.tuning.trial_runs import TrialRuns

Become = Callable[[int], None]


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """A run in SQLite, and a client of it."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    return client, client.create_run("0").info.run_id


def steps(run: Any, key: str = "loss") -> list[int]:
    client, run_id = run
    return [point.step for point in client.get_metric_history(run_id, key)]


def test_resumed_stale_attempt_overwrites_no_reports(
    tmp_path: Path, replace: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "storage" / "steps"
    folder.mkdir(parents=True)
    reports: Outbox = Outbox(HistorySink(f"{folder}/0"))
    first = {"step": 0, "training_iteration": 1, "loss": 1.0}
    reports.put([first])
    wait_for(lambda: not reports.pending(), "the delivery of the report")
    replace()
    for step in (1, 2):
        reports.put([{"step": step, "loss": 0.5}])
    late: Outbox = Outbox(HistorySink(f"{folder}/0"))
    late.put([{"step": 3}])
    wait_for(lambda: caplog.text.count("gets nothing more from here: Attempt 1 of job steps") == 2, "both warnings")
    reports.put([{"step": 4}])
    for outbox in (reports, late):
        outbox.close()
    assert history() == [first]


def test_resumed_stale_attempt_adds_no_metrics(
    become: Become, replace: Callable[[], None], run: Any, tmp_path: Path
) -> None:
    address = f"sqlite:///{tmp_path}/mlflow.db"
    first = RunSink(run[1], address)
    first.open()
    first.send([Point("loss", 1.0, 0, 1)])
    replace()
    become(2)
    second = RunSink(run[1], address)
    second.open()
    become(1)
    for step in (1, 2):
        with pytest.raises(FencedError):
            first.send([Point("loss", 9.0, step, 2)])
    become(2)
    second.send([Point("loss", 0.9, 0, 3), Point("loss", 0.5, 1, 3)])
    assert steps(run) == [0, 1]
    assert run[0].get_metric_history(run[1], "loss")[1].value == 0.5


def test_pending_metrics_of_replaced_attempt_are_dropped(replace: Callable[[], None], run: Any, tmp_path: Path) -> None:
    replace()
    writer = Outbox(RunSink(run[1], f"sqlite:///{tmp_path}/mlflow.db"))
    writer.put([Point("loss", 1.0, 0, 1)])
    reports: Outbox = Outbox(HistorySink(str(tmp_path / "storage" / "steps" / "0")))
    reports.put([{"step": 0}])
    started = time.monotonic()
    writer.close()
    reports.close()
    assert time.monotonic() - started < 20
    assert steps(run) == []


def test_resumed_stale_attempt_changes_no_trial(replace: Callable[[], None], run: Any, tmp_path: Path) -> None:
    parent = run[1]
    trials = TrialRuns(parent, "tune", f"sqlite:///{tmp_path}/mlflow.db")
    trials.open()
    trials.send([lambda runs: runs.start("a", "a", {})])
    replace()
    with pytest.raises(FencedError):
        trials.send([lambda runs: runs.finish("a", "failed", None), lambda runs: runs.start("b", "b", {})])
    assert trials.find("b") is None
    found = trials.find("a")
    assert found
    assert found.info.status == "RUNNING"


@pytest.fixture
def tracked(become: Become, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """MLflow's client for the SQLite database that this process tracks to."""
    import mlflow

    address = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    job.settings.cache_clear()
    mlflow.set_tracking_uri(address)
    yield mlflow.MlflowClient()
    mlflow.set_tracking_uri(None)


def test_resumed_stale_attempt_leaves_run_to_successor(tracked: Any) -> None:
    import mlflow

    before: list[Any] = []

    def wake_up_and_fail() -> None:
        with tracking_run.job_run() as run:
            assert run
            # The successor's changes to the run.
            tracked.set_tag(run.info.run_id, contract.TAG_ATTEMPT, "2")
            before.append(tracked.get_run(run.info.run_id))
            raise ValueError("woken up")

    with pytest.raises(ValueError, match="woken up"):
        wake_up_and_fail()
    after = tracked.get_run(before[0].info.run_id)
    assert (after.info.status, after.info.end_time) == ("RUNNING", None)
    assert after.data.tags == before[0].data.tags
    assert mlflow.active_run() is None, "the run is still active, so MLflow would end it when the process exits"


def test_replaced_attempt_cannot_rejoin_run(tracked: Any, become: Become, replace: Callable[[], None]) -> None:
    replace()
    become(2)
    with tracking_run.job_run() as run:
        assert run
    become(1)
    with pytest.raises(FencedError, match="was replaced by attempt 2"), tracking_run.job_run():
        pass
    after = tracked.get_run(run.info.run_id)
    assert (after.info.status, after.data.tags[contract.TAG_ATTEMPT]) == ("FINISHED", "2")
