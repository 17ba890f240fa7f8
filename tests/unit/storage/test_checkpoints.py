"""Checkpoints of a job's training runs, as Ray Train stores them and `mlplatform jobs ID` shows them."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mlplatform.api.jobs import Attempt
from mlplatform.client.jobs import Jobs
from mlplatform.settings.job import Settings
from mlplatform.storage.checkpoints import KEPT_BY, count_reports, remove_unkept, restore_nan, training_runs


def kept(number: int, accuracy: float) -> dict[str, object]:
    return {"version": 0, "checkpoint_dir_name": f"checkpoint_{number}", "metrics": {"epoch": number, "acc": accuracy}}


def leave(folder: Path, results: list[dict[str, object]], latest: dict[str, object] | None, metric: str | None) -> None:
    """Write a training run's folder like Ray Train 2.60; results are in Ray's order, the best one last."""
    folder.mkdir(parents=True)
    snapshot = {"checkpoint_results": results, "latest_checkpoint_result": latest}
    (folder / "checkpoint_manager_snapshot.json").write_text(json.dumps(snapshot))
    if latest:
        (folder / str(latest["checkpoint_dir_name"])).mkdir()
        (folder / str(latest["checkpoint_dir_name"]) / ".metadata.json").write_text(json.dumps({KEPT_BY: metric}))


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MLPLATFORM_STORAGE", str(tmp_path))
    folder = tmp_path / "digits-1"
    leave(folder / "fit", [kept(3, 0.5), kept(1, 0.75)], kept(3, 0.5), "acc")
    leave(folder / "by-age", [kept(1, 0.75), kept(2, 0.5)], kept(2, 0.5), None)
    leave(folder / "tune" / "trial", [kept(0, 0.5)], kept(0, 0.5), None)
    leave(folder / "none", [], None, None)
    return folder


def test_best_checkpoint_is_selected_by_metric(job: Path) -> None:
    found = {fit.name: fit for fit in training_runs("digits-1")}
    assert list(found) == ["by-age", "fit", "tune/trial"]
    fit = found["fit"]
    assert (fit.latest.uri, fit.latest.metrics["epoch"]) == (f"{job}/fit/checkpoint_3", 3)
    assert fit.best is not None
    assert (fit.best.uri, fit.metric) == (f"{job}/fit/checkpoint_1", "acc")
    assert found["by-age"].latest.uri == f"{job}/by-age/checkpoint_2"
    assert found["by-age"].best is None


def test_checkpoint_without_metadata_has_no_metric(job: Path) -> None:
    (job / "fit" / "checkpoint_3" / ".metadata.json").unlink()
    assert {fit.metric for fit in training_runs("digits-1")} == {None}


def test_partial_checkpoints_of_lost_worker_are_removed(job: Path) -> None:
    fit = job / "fit"
    for name in ("checkpoint_1", "checkpoint_4", "files_of_the_job"):
        (fit / name).mkdir()
        (fit / name / "state.json").write_text("{}")
    assert remove_unkept(str(fit)) == ["checkpoint_4"]
    left = {path.name for path in fit.iterdir() if path.is_dir()}
    assert left == {"checkpoint_1", "checkpoint_3", "files_of_the_job"}


def test_nothing_is_removed_before_first_checkpoint(tmp_path: Path) -> None:
    assert remove_unkept(str(tmp_path / "fit")) == []


def counted(folder: Path, counts: dict[int, int | None], indices: list[int]) -> None:
    """Write checkpoints by number, with report counts in their metadata and Ray's report indices."""
    folder.mkdir()
    for number, count in counts.items():
        (folder / f"checkpoint_{number}").mkdir()
        (folder / f"checkpoint_{number}" / ".metadata.json").write_text(json.dumps({"count": count} if count else {}))
    results = [kept(number, 0.5) for number in counts]
    snapshot = {"checkpoint_results": results, "checkpoint_report_indices": indices}
    snapshot["latest_checkpoint_result"] = kept(max(counts), 0.5)
    (folder / "checkpoint_manager_snapshot.json").write_text(json.dumps(snapshot))


@pytest.mark.parametrize(
    ("counts", "indices", "reports"),
    [
        ({3: 9, 2: 6}, [8, 5], 9),
        # The controller was lost before it stored the count with the latest checkpoint.
        ({3: None, 2: 6}, [8, 5], 9),
        ({1: 3, 3: None, 2: 6}, [2, 8, 5], 9),
        ({3: None}, [8], 9),
    ],
)
def test_reports_are_counted_without_count_in_latest_checkpoint(
    tmp_path: Path, counts: dict[int, int | None], indices: list[int], reports: int
) -> None:
    counted(tmp_path / "fit", counts, indices)
    assert count_reports(str(tmp_path / "fit"), "count") == reports


def test_report_count_is_zero_without_checkpoint(tmp_path: Path) -> None:
    assert count_reports(str(tmp_path / "fit"), "count") == 0


@pytest.mark.parametrize(("metric", "place"), [("acc", ["acc"]), ("val/acc", ["val", "acc"])])
def test_nan_scores_are_restored(tmp_path: Path, metric: str, place: list[str]) -> None:
    def scored(number: int, score: float | None) -> dict[str, object]:
        metrics: dict[str, object] = {"note": None, place[0]: score if len(place) == 1 else {place[1]: score}}
        return {**kept(number, 0), "metrics": metrics}

    def score(result: dict[str, object]) -> float:
        value = result["metrics"]
        for key in place:
            value = value[key]  # type: ignore[index]
        return value  # type: ignore[return-value]

    leave(tmp_path / "fit", [scored(1, None), scored(2, 0.5)], scored(1, None), metric)
    restore_nan(str(tmp_path / "fit"), metric)
    found = json.loads((tmp_path / "fit" / "checkpoint_manager_snapshot.json").read_text())
    assert [str(score(result)) for result in found["checkpoint_results"]] == ["nan", "0.5"]
    assert math.isnan(score(found["latest_checkpoint_result"]))
    assert found["latest_checkpoint_result"]["metrics"]["note"] is None
    restore_nan(str(tmp_path / "none"), metric)


def test_job_without_checkpoints_has_no_training_runs(job: Path) -> None:
    assert training_runs("digits-2") == []


OF_PLATFORM = {"state": "RUNNING", "max_restarts_on_loss": 3, "max_restarts_on_failure": 0, "attempts": []}
"""Additions of the platform to Ray's details of a job."""


def test_job_output_shows_checkpoint_addresses(job: Path, serve: Callable[..., str]) -> None:
    details = {"submission_id": "digits-1", "job_id": None, "status": "SUCCEEDED", "entrypoint": "python digits.py"}
    known = {**details, "metadata": {"user": "ada"}, "message": "Job finished successfully."}
    answers = {"/api/jobs/digits-1": known, "/platform/jobs/digits-1": {**known, **OF_PLATFORM}}
    address = serve(lambda method, path: (200, json.dumps(answers[path])) if path in answers else (404, "no such page"))
    command = [sys.executable, "-m", "mlplatform", "jobs", "digits-1"]
    env = {**os.environ, "RAY_ADDRESS": address}
    shown = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert lines[:4] == ["Job digits-1", "Status SUCCEEDED", "User ada", "Command python digits.py"]
    assert f"Latest of fit epoch 3: {job}/fit/checkpoint_3" in lines
    assert f"Best of fit acc 0.75: {job}/fit/checkpoint_1" in lines
    assert not any(line.startswith("Best of by-age") for line in lines)


def test_attempts_are_parsed_from_gateway(serve: Callable[..., str]) -> None:
    details = {"submission_id": "a", "job_id": None, "status": "RUNNING", "entrypoint": "python a.py"}
    begun, died = "2026-11-21T20:20:52.679896+00:00", "2026-11-21T20:21:04+00:00"
    lost = {"number": 1, "ray_submission_id": "a", "outcome": "LOST", "reason": "its node died", "node": "w0"}
    attempts = [
        {**lost, "created": begun, "ended": died},
        {**lost, "number": 2, "outcome": None, "reason": None, "node": "w1", "created": died, "ended": None},
        {**lost, "number": 3, "created": died, "ended": None, "leave_by": died, "leave_why": "Team vision waits."},
    ]

    def answer(method: str, path: str) -> tuple[int, str]:
        more = {**OF_PLATFORM, "attempts": attempts} if path == "/platform/jobs/a" else {}
        return 200, json.dumps({**details, **more})

    with Jobs(Settings.load(ray_address=serve(answer))) as jobs:
        first, second, third = jobs.attempts("a")
    end = datetime(2026, 11, 21, 20, 21, 4, tzinfo=UTC)
    times = {"created": datetime.fromisoformat(begun), "ended": end}
    assert first == Attempt(number=1, ray_submission_id="a", outcome="LOST", reason="its node died", node="w0", **times)
    assert (second.number, second.outcome, second.node, second.ended) == (2, None, "w1", None)
    assert (third.leave_by, third.leave_why) == (end, "Team vision waits.")
    assert [attempt.leaves for attempt in (first, second, third)] == [False, False, True]
