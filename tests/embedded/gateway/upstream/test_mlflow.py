"""Ending runs from outside, on a real MLflow server with SQLite."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from mlplatform.contract import TAG_END_REASON
from mlplatform.errors import AccessError, UnreachableError
from mlplatform.gateway.upstream.mlflow import JobPages, close_runs, jobs_with_open_runs, mlflow_client

pytestmark = pytest.mark.usefixtures("clean_environment")

ODD_IDS = ["it's", 'say "so"', """both ' and " of them""", "100%", "a;b", "a--b", "back\\slash", "größe"]


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
        from werkzeug.serving import make_server

        patch.setattr(handlers, "_tracking_store", None)
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


def start(mlflow: Any, job_id: str, experiment: str = "0", **tags: str) -> str:
    """Start a run and return its id."""
    own = {"mlplatform.job_id": job_id, **{f"mlplatform.{key}": value for key, value in tags.items()}}
    return str(mlflow.create_run(experiment, tags=own).info.run_id)


def close(address: str, *arguments: Any, account: Path | None = None, **options: Any) -> int:
    async def call() -> int:
        async with mlflow_client(address, account) as client:
            return await close_runs(client, *arguments, **options)

    return asyncio.run(call())


def test_jobs_with_open_runs_are_found_in_one_search(mlflow: Any, mlflow_address: str) -> None:
    async def found() -> set[str]:
        async with mlflow_client(mlflow_address) as client:
            return await jobs_with_open_runs(client)

    for job_id in ("open", *ODD_IDS):
        start(mlflow, job_id)
    mlflow.set_terminated(start(mlflow, "ended"))
    assert {"open", *ODD_IDS} <= asyncio.run(found())
    assert "ended" not in asyncio.run(found())
    for job_id in ("open", *ODD_IDS):
        assert close(mlflow_address, job_id, "FINISHED", "") == 1
    assert not asyncio.run(found()) & {"open", *ODD_IDS}


def test_all_open_runs_of_job_end_with_reason(mlflow: Any, mlflow_address: str) -> None:
    elsewhere = mlflow.create_experiment("elsewhere")
    runs = [
        start(mlflow, "dead", role="job", attempt="2"),
        start(mlflow, "dead", elsewhere, attempt="1"),
        start(mlflow, "dead"),
    ]
    mlflow.update_run(runs[2], status="SCHEDULED")
    of_another = start(mlflow, "dead-2", role="job")
    assert close(mlflow_address, "dead", "FAILED", "its node was lost") == 3
    for run in map(mlflow.get_run, runs):
        assert run.info.status == "FAILED"
        assert run.info.end_time >= run.info.start_time
        assert run.data.tags[TAG_END_REASON] == "its node was lost"
    assert mlflow.get_run(of_another).info.status == "RUNNING"
    assert close(mlflow_address, "dead", "KILLED", "again") == 0
    assert mlflow.get_run(runs[0]).info.status == "FAILED"


def test_ended_run_keeps_status_and_end_time(mlflow: Any, mlflow_address: str) -> None:
    ended = start(mlflow, "ended")
    mlflow.set_terminated(ended, "FINISHED", 1)
    assert close(mlflow_address, "ended", "FAILED", "lost") == 0
    run = mlflow.get_run(ended)
    assert (run.info.status, run.info.end_time) == ("FINISHED", 1)
    assert TAG_END_REASON not in run.data.tags


def test_closing_attempt_ends_only_its_own_runs(mlflow: Any, mlflow_address: str) -> None:
    parent = start(mlflow, "goes-on", role="job", attempt="1")
    first, second = (start(mlflow, "goes-on", attempt=number) for number in ("1", "2"))
    assert close(mlflow_address, "goes-on", "FAILED", "replaced", attempt=1) == 1
    assert [mlflow.get_run(run).info.status for run in (parent, first, second)] == ["RUNNING", "FAILED", "RUNNING"]


@pytest.mark.parametrize("job_id", ODD_IDS)
def test_job_id_with_special_characters_matches_exactly(job_id: str, mlflow: Any, mlflow_address: str) -> None:
    own, other = start(mlflow, job_id), start(mlflow, "other")
    assert close(mlflow_address, job_id, "KILLED", "stopped") == 1
    assert [mlflow.get_run(run).info.status for run in (own, other)] == ["KILLED", "RUNNING"]


def test_runs_beyond_first_page_are_ended(mlflow: Any, mlflow_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlplatform.gateway.upstream.mlflow._PAGE", 2)
    for number in range(3):
        mlflow.create_experiment(f"many-{number}")
    last = mlflow.get_experiment_by_name("many-0").experiment_id
    runs = [start(mlflow, "many", last) for _ in range(5)]
    assert close(mlflow_address, "many", "KILLED", "stopped") == 5
    assert {mlflow.get_run(run).info.status for run in runs} == {"KILLED"}


def test_long_end_reason_is_truncated(mlflow: Any, mlflow_address: str) -> None:
    run = start(mlflow, "wordy")
    assert close(mlflow_address, "wordy", "FAILED", "x" * 100_000) == 1
    assert set(mlflow.get_run(run).data.tags[TAG_END_REASON]) == {"x"}


def test_unavailable_mlflow_is_reported(closed_port: int) -> None:
    with pytest.raises(UnreachableError, match=rf"MLflow at http://127.0.0.1:{closed_port} .* does not answer"):
        close(f"http://127.0.0.1:{closed_port}", "job", "FAILED", "lost")


@pytest.mark.parametrize(
    ("answer", "kind", "expected"),
    [
        ((401, "no"), AccessError, r"rejected the account \(401\); name the file"),
        ((503, "{}"), UnreachableError, "with 503"),
        ((200, "<html>"), UnreachableError, "is not MLflow"),
    ],
)
def test_invalid_mlflow_response_gives_one_sentence_error(
    answer: tuple[int, str], kind: type[Exception], expected: str, serve: Callable[..., str]
) -> None:
    with pytest.raises(kind, match=expected):
        close(serve(lambda method, path: answer), "job", "FAILED", "lost")


def test_account_from_file_is_sent(tmp_path: Path) -> None:
    from mlplatform.credentials import mlflow_account, read_mlflow_account

    mlflow_account("job", tmp_path / "account")
    client = mlflow_client("http://mlflow:8000/", tmp_path / "account")
    request = client._http.build_request("GET", "runs/get")
    flow = client._http._build_request_auth(request).sync_auth_flow(request)
    assert next(flow).headers["Authorization"].startswith("Basic ")
    assert read_mlflow_account(tmp_path / "account")[0] == "job"
    assert str(client._http.base_url) == "http://mlflow:8000/api/2.0/mlflow/"


def test_page_of_job_is_a_run_of_its_owner(mlflow: Any, mlflow_address: str) -> None:
    def claim(user: str, **tags: str) -> str:
        body = {"experiment_id": "0", "user_id": user, "tags": [{"key": "mlflow.user", "value": "bob"}]}
        body["tags"] += [{"key": f"mlplatform.{key}", "value": value} for key, value in tags.items()]
        answer = httpx.post(f"{mlflow_address}/api/2.0/mlflow/runs/create", json=body)
        return str(answer.json()["run"]["info"]["run_id"])

    async def page(owner: str | None) -> str | None:
        async with mlflow_client(mlflow_address) as client:
            return await JobPages(client).run("taken-over", owner)

    first = claim("alice", job_id="taken-over", role="job")
    assert asyncio.run(page("bob")) is None
    own = claim("bob", job_id="taken-over")
    assert own in (asyncio.run(page("bob")) or "")
    # A job of the shared token has no owner: everybody with the token may log for it.
    assert first in (asyncio.run(page(None)) or "")
