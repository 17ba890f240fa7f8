"""Private names of MLflow that the package uses: if an upgrade changes one, these tests fail within seconds."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from waiting import wait_for

pytest.importorskip("mlflow")

from mlplatform.compat import mlflow as compat
from mlplatform.tracking import params
from mlplatform.tracking.system_metrics import NodeMonitor


@pytest.fixture(autouse=True)
def file_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow MLflow's file store, which needs no set-up time, unlike a database."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


def parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_parameter_length_limit_is_known() -> None:
    from mlflow.utils.validation import MAX_PARAM_VAL_LENGTH

    assert MAX_PARAM_VAL_LENGTH == params.MAX_CHARACTERS


def test_active_runs_can_be_forgotten(tmp_path: Path) -> None:
    import mlflow

    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    try:
        # Use the default experiment, in case another test has set one.
        run = mlflow.start_run(experiment_id="0")
        compat.forget_active_runs()
        assert mlflow.active_run() is None
        assert mlflow.get_run(run.info.run_id).info.status == "RUNNING", "the run was ended instead of forgotten"
    finally:
        mlflow.set_tracking_uri(None)


def test_tracking_and_registry_uris_are_restored(tmp_path: Path) -> None:
    import mlflow
    from mlflow.tracking import fluent
    from mlflow.tracking._model_registry import utils

    assert {"_active_experiment_id", "_active_run_stack"} <= vars(fluent).keys()
    assert "_registry_uri" in vars(utils)
    before = (mlflow.get_tracking_uri(), utils._registry_uri, fluent._active_experiment_id)
    with compat.restored_addresses():
        mlflow.set_tracking_uri((tmp_path / "other").as_uri())
        mlflow.set_registry_uri((tmp_path / "registry").as_uri())
        mlflow.set_experiment("other")
        assert fluent._active_experiment_id != before[2]
        assert utils._registry_uri
    assert (mlflow.get_tracking_uri(), utils._registry_uri, fluent._active_experiment_id) == before
    mlflow.set_tracking_uri(None)


def test_system_metrics_continue_after_last_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.1")
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLES_BEFORE_LOGGING", "2")
    address, name = (tmp_path / "runs").as_uri(), "system/node-1/cpu_utilization_percentage"
    client = mlflow.MlflowClient(address)
    run = client.create_run(client.create_experiment("metrics"))
    client.log_metric(run.info.run_id, "system/cpu_utilization_percentage", 1.0, step=6)
    refused, send = [ConnectionError("unavailable")], NodeMonitor._send

    def send_second(*arguments: Any) -> None:
        if refused:
            raise refused.pop()
        send(*arguments)

    monkeypatch.setattr(NodeMonitor, "_send", send_second)
    with NodeMonitor(lambda: run, address, "node-1").running():
        wait_for(lambda: len(client.get_metric_history(run.info.run_id, name)) > 1, "two points")
    assert [point.step for point in client.get_metric_history(run.info.run_id, name)][:2] == [7, 8]


def test_latest_metrics_include_their_steps() -> None:
    from mlflow.entities import Metric, Run, RunData, RunInfo

    data = RunData(metrics=[Metric("loss", 0.5, 1, 3)])  # type: ignore[no-untyped-call]
    info = RunInfo("r", "e", "u", "RUNNING", 0, None, "active")  # type: ignore[no-untyped-call]
    (metric,) = compat.latest_metrics(Run(info, data))
    assert (metric.key, metric.value, metric.step) == ("loss", 0.5, 3)


def test_every_artifact_repository_downloads_single_files(tmp_path: Path) -> None:
    from mlflow.store.artifact.artifact_repo import ArtifactRepository
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
    from mlflow.store.artifact.http_artifact_repo import HttpArtifactRepository
    from mlflow.store.artifact.mlflow_artifacts_repo import MlflowArtifactsRepository

    for repository in (ArtifactRepository, HttpArtifactRepository, MlflowArtifactsRepository):
        assert parameters(repository._download_file) == ["self", "remote_file_path", "local_path"]
    (tmp_path / "stored").mkdir()
    (tmp_path / "stored" / "weights").write_text("1")
    compat.download_file(get_artifact_repository(str(tmp_path / "stored")), "weights", tmp_path / "fetched")
    assert (tmp_path / "fetched").read_text() == "1"


def test_pytorch_flavor_has_serialization_formats() -> None:
    import mlflow

    # Read as text: importing mlflow.pytorch loads torch.
    source = (Path(mlflow.__file__).parent / "pytorch" / "__init__.py").read_text()
    for name in ("log_model", "save_model"):
        assert f"def {name}(" in source
        assert source.count("serialization_format") > 2


def test_model_is_pickled_by_default() -> None:
    def save_model(model, input_example=None, export_model=False, serialization_format=None, **others):  # type: ignore
        return serialization_format

    pytorch = ModuleType("mlflow.pytorch")
    pytorch.log_model = pytorch.save_model = save_model  # type: ignore[attr-defined]
    compat.set_pickle_default(pytorch)
    save: Callable[..., str | None] = pytorch.save_model  # type: ignore[attr-defined]
    assert save("model") == save("model", path="here") == save("model", None, False, None) == "pickle"
    assert save("model", input_example=[1.0]) is None
    assert save("model", export_model=True) is None
    assert save("model", serialization_format="pt2") == "pt2"


def test_printed_page_can_be_replaced_per_server() -> None:
    from mlflow.tracking._tracking_service import client
    from mlflow.utils import databricks_utils

    assert parameters(client.TrackingServiceClient._log_url) == ["self", "run_id"]
    assert not parameters(databricks_utils.get_workspace_url)
    source = inspect.getsource(inspect.unwrap(client.TrackingServiceClient._log_url))
    assert "host_url = get_workspace_url()" in source
    assert "self.tracking_uri" in source
