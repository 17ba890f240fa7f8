"""Ending runs from outside, on a real MLflow server with SQLite."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlplatform.contract import TAG_END_REASON
from mlplatform_gateway.mlflow.client import close_runs, mlflow_client, open_runs
from mlplatform_gateway.mlflow.results import read_runs

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture(scope="module")
def mlflow_address(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("_MLFLOW_SERVER_FILE_STORE", database)
        patch.setenv("_MLFLOW_SERVER_ARTIFACT_ROOT", str(tmp_path_factory.mktemp("artifacts")))
        import mlflow
        from mlflow.server import app, handlers
        from mlflow.tracking._model_registry import utils
        from werkzeug.serving import make_server

        patch.setattr(handlers, "_tracking_store", None)
        patch.setattr(handlers, "_model_registry_store", None)
        # It would remain for other tests, in a variable too.
        patch.setattr(utils, "set_registry_uri", lambda uri: None)
        server = make_server("127.0.0.1", 0, app, threaded=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        # Starting the server has set this process's tracking URI to the server's database.
        mlflow.set_tracking_uri(None)


@pytest.fixture
def mlflow(database: str, mlflow_address: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(database)


def start(mlflow: Any, experiment: str = "0", **tags: str) -> str:
    """Start a run and return its id."""
    return str(mlflow.create_run(experiment, tags={f"mlplatform.{key}": tags[key] for key in tags}).info.run_id)


async def close(address: str, *arguments: Any, account: Path | None = None, **options: Any) -> int:
    async with mlflow_client(address, account) as client:
        return await close_runs(client, *arguments, **options)


async def test_open_runs_of_all_experiments_are_found(
    mlflow: Any, mlflow_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlplatform_gateway.mlflow.client._PAGE", 2)
    experiments = [mlflow.create_experiment(f"many-{number}") for number in range(3)]
    runs = [start(mlflow, experiment) for experiment in experiments for _ in range(3)]
    mlflow.update_run(runs[0], status="SCHEDULED")
    mlflow.set_terminated(runs[-1])
    async with mlflow_client(mlflow_address) as client:
        assert await open_runs(client) & set(runs) == set(runs[:-1])


async def test_open_runs_end_with_reason(mlflow: Any, mlflow_address: str) -> None:
    runs = [start(mlflow) for _ in range(2)]
    mlflow.update_run(runs[1], status="SCHEDULED")
    of_another = start(mlflow, job_id="dead")
    assert await close(mlflow_address, runs, "FAILED", "its node was lost") == 2
    for run in map(mlflow.get_run, runs):
        assert run.info.status == "FAILED"
        assert run.info.end_time >= run.info.start_time
        assert run.data.tags[TAG_END_REASON] == "its node was lost"
    assert mlflow.get_run(of_another).info.status == "RUNNING"
    assert await close(mlflow_address, [*runs, "0" * 32], "KILLED", "again") == 0
    assert mlflow.get_run(runs[0]).info.status == "FAILED"


async def test_ended_run_keeps_status_and_end_time(mlflow: Any, mlflow_address: str) -> None:
    ended = start(mlflow)
    mlflow.set_terminated(ended, "FINISHED", 1)
    assert await close(mlflow_address, [ended], "FAILED", "lost") == 0
    run = mlflow.get_run(ended)
    assert (run.info.status, run.info.end_time) == ("FINISHED", 1)
    assert TAG_END_REASON not in run.data.tags


async def test_run_that_the_next_attempt_has_continued_stays_open(mlflow: Any, mlflow_address: str) -> None:
    runs = [start(mlflow, attempt="1"), start(mlflow, attempt="2"), start(mlflow)]
    assert await close(mlflow_address, runs, "FAILED", "replaced", attempt=1) == 2
    assert [mlflow.get_run(run).info.status for run in runs] == ["FAILED", "RUNNING", "FAILED"]


async def test_long_end_reason_is_truncated(mlflow: Any, mlflow_address: str) -> None:
    run = start(mlflow)
    assert await close(mlflow_address, [run], "FAILED", "x" * 100_000) == 1
    assert set(mlflow.get_run(run).data.tags[TAG_END_REASON]) == {"x"}


def test_account_from_file_is_sent(tmp_path: Path) -> None:
    from mlplatform.secrets.credentials import read_mlflow_account, write_mlflow_account

    write_mlflow_account("job", "secret", tmp_path / "account")
    client = mlflow_client("http://mlflow:8000/", tmp_path / "account")
    request = client._http.build_request("GET", "runs/get")
    flow = client._http._build_request_auth(request).sync_auth_flow(request)
    assert next(flow).headers["Authorization"].startswith("Basic ")
    assert read_mlflow_account(tmp_path / "account")[0] == "job"
    assert str(client._http.base_url) == "http://mlflow:8000/api/2.0/mlflow/"


async def test_results_are_those_of_runs_that_exist(mlflow: Any, mlflow_address: str) -> None:
    deleted, first, second = (start(mlflow) for _ in range(3))
    mlflow.delete_run(deleted)
    for step in range(3):
        mlflow.log_metric(first, "loss", 2.0 - step, step=step)
    mlflow.log_metric(first, "nan", float("nan"))
    async with mlflow_client(mlflow_address) as client:
        assert await read_runs(client, []) == []
        assert await read_runs(client, ["0" * 32, deleted]) == []
        found, other = await read_runs(client, ["0" * 32, deleted, first, second])
    assert (found.page, other.page) == (f"#/experiments/0/runs/{first}", f"#/experiments/0/runs/{second}")
    assert found.metrics["loss"].steps == [0, 1, 2]
    assert found.metrics["loss"].values == [2.0, 1.0, 0.0]
    assert found.metrics["nan"].values == [None]
    assert other.metrics == {}
