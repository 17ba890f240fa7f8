"""The main job on real Ray and MLflow; one of its workers is killed during training (see conftest)."""

import math
from pathlib import Path

import pytest
from embedded import EPOCHS, JOBS, Killed

from mlplatform.client.jobs import Jobs
from mlplatform.errors import RegistryError
from mlplatform.registry import models
from mlplatform.settings.job import Settings
from mlplatform.tracking import server

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("environment")]


def history(run_id: str, key: str) -> list[tuple[int, float]]:
    from mlflow import MlflowClient

    return [(point.step, point.value) for point in MlflowClient().get_metric_history(run_id, key)]


def test_main_job_survives_worker_loss(digits: Killed) -> None:
    assert digits.status == "SUCCEEDED", "\n".join(digits.log[-30:])
    assert 0 < digits.reports_before < EPOCHS
    epochs = [int(report["epoch"]) for report in digits.reports]
    replayed = epochs[digits.reports_before :]
    assert 0 not in replayed, f"it started over instead of resuming from its last checkpoint: {epochs}"
    assert sorted(set(epochs)) == list(range(EPOCHS))


@pytest.mark.parametrize("key", ["train_loss", "val_loss", "val_accuracy", "epoch"])
def test_each_reported_metric_has_one_point_per_step(digits: Killed, key: str) -> None:
    run = server.find_run(digits.job_id)
    assert run
    points = history(run.info.run_id, key)
    steps_an_epoch = math.ceil(math.ceil(1197 / 2) / 32)
    assert [step for step, _ in points] == [steps_an_epoch * epoch for epoch in range(1, EPOCHS + 1)]
    first_reports = {}
    for report in digits.reports:
        first_reports.setdefault(int(report["step"]), report[key])
    assert dict(points) == pytest.approx(first_reports)


def test_second_attempt_continues_run_without_duplicates(digits: Killed, reached: Settings) -> None:
    from mlflow import MlflowClient

    # Fewer epochs than the main job's, so that this model is worse than the champion.
    epochs = 4
    with Jobs(reached) as jobs:
        job_id = jobs.submit(
            f'python digits.py --epochs={epochs} && test "$MLPLATFORM_ATTEMPT" = 2',
            JOBS,
            name="again",
            max_restarts_on_failure=1,
        )
        job = jobs.wait(job_id, timeout_s=300)
        assert job.status == "SUCCEEDED", jobs.logs(job_id)[-3000:]
        assert [attempt.outcome for attempt in jobs.attempts(job_id)] == ["FAILED", "SUCCEEDED"]
    run = server.find_run(job_id)
    assert run
    assert run.info.status == "FINISHED"
    assert run.data.tags["mlplatform.attempt"] == "2"
    for key in ("train_loss", "val_accuracy", "test_accuracy"):
        steps = [step for step, _ in history(run.info.run_id, key)]
        assert len(steps) == len(set(steps)) == (1 if key == "test_accuracy" else epochs)
    assert len(MlflowClient().search_model_versions(f"run_id = '{run.info.run_id}'")) == 1


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: models.best_run("none", "f1"), "no experiment 'none'; there are: .*digits"),
        (lambda: models.best_run("digits", "f1"), "has a metric 'f1'"),
        (lambda: models.promote("digits", 99), "Version 99 of model 'digits' cannot become 'champion'"),
        (lambda: models.promote("none", 1), "Version 1 of model 'none'"),
        (lambda: models.download("digits@best", "out"), "'digits' has no alias 'best'; it has: .*champion = version"),
        (lambda: models.download("digits", "out"), "neither name@alias nor name/version"),
        (lambda: models.register("models:/m-none", "half-made"), "models:/m-none cannot be registered"),
        (lambda: models.register("runs:/none/model", "half-made"), "runs:/none/model cannot be registered"),
    ],
)
@pytest.mark.usefixtures("digits")
def test_missing_registry_entries_are_named(
    call: object, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert callable(call)
    with pytest.raises(RegistryError, match=expected) as error:
        call()
    assert "\n" not in str(error.value)
    assert "half-made" not in [name for name, _, _ in models.models()]
