"""Publishing a model with a real MLflow: once per run, even after an interrupted upload."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import mlplatform
from mlplatform.registry import lookup
from mlplatform.settings.job import Settings


class Scaled:
    """A model with one parameter that counts its uploads."""

    def __init__(self, factor: float) -> None:
        self.factor, self.uploads = factor, 0

    def log(self, name: str) -> object:
        import mlflow
        import torch

        self.uploads += 1
        model = torch.nn.Linear(1, 1)
        torch.nn.init.constant_(model.weight, self.factor)
        return mlflow.pytorch.log_model(model, name=name, pip_requirements=["torch"])


@pytest.fixture(autouse=True)
def published(environment: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    import mlflow

    mlflow.set_experiment("publishing")
    yield
    while mlflow.active_run():
        mlflow.end_run()


def test_second_attempt_reuses_published_version(capsys: pytest.CaptureFixture[str]) -> None:
    import mlflow

    model = Scaled(2.0)
    with mlflow.start_run() as run:
        first = mlplatform.publish_model("scaled", model.log, run)
        again = mlplatform.publish_model("scaled", model.log, run)
    assert [int(version.version) for version in (first, again)] == [1, 1]
    assert model.uploads == 1
    champion = lookup.version_of("scaled", "champion")
    assert champion
    assert champion.run_id == run.info.run_id
    assert capsys.readouterr().out.count("Model: scaled version 1, alias champion (models:/scaled@champion)") == 2


def test_model_of_ended_run_is_logged_to_it() -> None:
    import mlflow

    with mlflow.start_run() as ended:
        pass
    with mlflow.start_run() as job:
        version = mlplatform.publish_model("scaled-elsewhere", Scaled(2.0).log, ended)
        active = mlflow.active_run()
        assert active
        assert active.info.run_id == job.info.run_id
    assert version.run_id == ended.info.run_id
    assert mlflow.get_run(ended.info.run_id).info.status == "FINISHED"


def test_interrupted_model_upload_is_repeated() -> None:
    import mlflow

    model = Scaled(2.0)
    with mlflow.start_run() as run:
        mlflow.initialize_logged_model(name="interrupted", source_run_id=run.info.run_id)
        version = mlplatform.publish_model("interrupted", model.log, run)
    assert model.uploads == 1
    assert mlflow.pytorch.load_model("models:/interrupted@champion").weight.item() == 2.0
    assert version.run_id == run.info.run_id


def test_other_models_of_run_are_not_published() -> None:
    import mlflow

    model = Scaled(2.0)
    with mlflow.start_run() as run:
        Scaled(-1.0).log("checkpoint")
        mlplatform.publish_model("scaled-own-name", model.log, run)
    assert model.uploads == 1
    assert mlflow.pytorch.load_model("models:/scaled-own-name@champion").weight.item() == 2.0


def test_worse_model_is_registered_but_not_promoted(capsys: pytest.CaptureFixture[str]) -> None:
    import mlflow

    versions = []
    for accuracy in (0.9, 0.5):
        with mlflow.start_run() as run:
            mlflow.log_metric("accuracy", accuracy)
            versions.append(mlplatform.publish_model("compared", Scaled(accuracy).log, run, metric="accuracy"))
    better, worse = versions
    assert worse.version != better.version
    champion = lookup.version_of("compared", "champion")
    assert champion
    assert champion.version == better.version
    assert "its accuracy of 0.5000 is worse than the 0.9000 of version" in capsys.readouterr().out
