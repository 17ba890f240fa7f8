import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mlplatform.client.mlflow_rest import Account, MlflowRest, RejectedError
from mlplatform.errors import AccessError, UnreachableError
from mlplatform.settings.job import settings
from mlplatform_gateway.mlflow.rest import AsyncMlflowRest

OWN = "http://mlflow:8000"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home directory with the platform's account, as on the stack's nodes."""
    for variable in ("USERNAME", "PASSWORD", "TOKEN"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{variable}", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MLPLATFORM_TRACKING_URI", OWN)
    (tmp_path / ".mlflow").mkdir()
    (tmp_path / ".mlflow" / "credentials").write_text(
        "[mlflow]\nmlflow_tracking_username = job\nmlflow_tracking_password = its-own\n"
    )
    settings.cache_clear()
    yield tmp_path
    settings.cache_clear()


def sent_to(server: str) -> str | None:
    """The Authorization header of a request."""
    with MlflowRest(server) as client:
        request = client._http.build_request("GET", "runs/get")
        flow = client._http._build_request_auth(request).sync_auth_flow(request)
        return next(flow).headers.get("Authorization")


def test_platform_account_is_sent_to_platform_server_only() -> None:
    assert str(sent_to(OWN)).startswith("Basic ")
    assert sent_to("http://elsewhere:5000") is None


def test_token_and_account_of_job_take_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "t")
    assert sent_to(OWN) == sent_to("http://elsewhere:5000") == "Bearer t"
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "mine")
    assert str(sent_to("http://elsewhere:5000")).startswith("Basic ")


def test_account_of_attempt_is_sent_to_platform_server_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ada")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", f"mlp_{'a' * 20}_{'B' * 40}")
    assert str(sent_to(OWN)).startswith("Basic ")
    assert sent_to("http://elsewhere:8000") is None
    assert sent_to(f"{OWN}0") is None
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "mine")
    assert str(sent_to(OWN)).startswith("Basic ")
    assert sent_to("http://elsewhere:8000") == "Bearer mine"


def test_malformed_account_file_is_ignored(home: Path) -> None:
    (home / ".mlflow" / "credentials").write_text("[other]\n")
    assert sent_to(OWN) is None
    (home / ".mlflow" / "credentials").unlink()
    assert sent_to(OWN) is None


def calls(address: str) -> list[Callable[[], object]]:
    """The same request with both clients."""

    async def call() -> object:
        async with AsyncMlflowRest(address, Account()) as client:
            return await client.call("GET", "runs/get", {"run_id": "1"})

    def blocking() -> object:
        with MlflowRest(address, Account()) as client:
            return client.call("GET", "runs/get", {"run_id": "1"})

    return [blocking, lambda: asyncio.run(call())]


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        ((401, "no"), AccessError, r"rejected the account \(401\); put your account into ~/.mlflow/credentials"),
        ((503, "{}"), UnreachableError, "failed on runs/get with 503: no reason was given; see its log"),
        ((200, "<html>"), UnreachableError, "is not MLflow: it answered runs/get with 200; correct the address"),
        ((404, "not found"), UnreachableError, "is not MLflow: it answered runs/get with 404"),
        (
            (400, json.dumps({"error_code": "INVALID_PARAMETER_VALUE", "message": "No run.\nTrace"})),
            RejectedError,
            r"MLflow at http://\S+ \(MLFLOW_TRACKING_URI\) rejected runs/get \(400\): No run\.$",
        ),
    ],
)
def test_both_clients_report_same_error(
    answer: tuple[int, str], kind: type[Exception], message: str, serve: Callable[..., str]
) -> None:
    address = serve(lambda method, path: answer)
    sentences = set()
    for call in calls(address):
        with pytest.raises(kind, match=message) as error:
            call()
        sentences.add(str(error.value))
    assert len(sentences) == 1


def test_both_clients_name_unreachable_server(closed_port: int) -> None:
    for call in calls(f"http://127.0.0.1:{closed_port}"):
        with pytest.raises(UnreachableError, match=rf"MLflow at http://127.0.0.1:{closed_port} .* does not answer \("):
            call()


def test_every_page_is_read(serve: Callable[..., str]) -> None:
    def answer(method: str, path: str) -> tuple[int, str]:
        page = {"entries": [2]} if "page_token=next" in path else {"entries": [1], "next_page_token": "next"}
        return 200, json.dumps(page)

    async def all_of(address: str) -> object:
        async with AsyncMlflowRest(address, Account()) as client:
            return await client.all("GET", "webhooks", "entries", {"max_results": 1})

    address = serve(answer)
    with MlflowRest(address, Account()) as client:
        assert client.all("GET", "webhooks", "entries", {"max_results": 1}) == [1, 2]
    assert asyncio.run(all_of(address)) == [1, 2]
