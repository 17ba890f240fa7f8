"""Metric names and rejections, compared with MLflow's own validation and errors."""

from typing import Any

import pytest

from mlplatform.tracking.metric_names import valid_name
from mlplatform.tracking.metrics import LocalRun, Point

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ("val/loss", "val/loss"),
        ("größe", "größe"),
        ("損失", "損失"),
        (" loss.", " loss."),
        ("...a/..b", "a/..b"),
        ("loss[train]", "loss_train_"),
        ("loss\n", "loss_"),
        ("/top/", "top"),
        ("val//loss", "val/loss"),
        ("a/./b", "a/b"),
        ("a/../b", "a/b"),
        (".../x", "x"),
        ("..", "_"),
        ("...", "_"),
        ("/", "_"),
        ("", "_"),
        ("x" * 300, "x" * 250),
        ("ü" * 300, "ü" * 250),
        ("x" * 249 + "/y", "x" * 249),
    ],
)
def test_invalid_metric_name_becomes_nearest_valid_name(asked: str, given: str) -> None:
    from mlflow.utils.validation import _validate_metric

    assert valid_name(asked) == given
    _validate_metric(given, 0.5, 1, 1)


@pytest.mark.parametrize(("code", "final"), [("INVALID_PARAMETER_VALUE", True), ("TEMPORARILY_UNAVAILABLE", False)])
def test_permanently_rejected_points_are_not_resent(code: str, final: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient, MlflowException
    from mlflow.protos import databricks_pb2

    def refuse(*_: Any, **__: Any) -> None:
        raise MlflowException("no", error_code=getattr(databricks_pb2, code))

    monkeypatch.setattr(MlflowClient, "__init__", lambda *_: None)
    monkeypatch.setattr(MlflowClient, "log_batch", refuse)
    run = LocalRun("sqlite://", "run")
    if final:
        assert run.log([Point("loss", 0.0, 1, 1)]) == f"{code}: no"
    else:
        with pytest.raises(MlflowException):
            run.log([Point("loss", 0.0, 1, 1)])
