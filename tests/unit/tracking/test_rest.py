from collections.abc import Iterator
from pathlib import Path

import pytest

from mlplatform.settings.job import settings
from mlplatform.tracking import rest

OWN = "http://mlflow:8000"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home with the platform's account, as on the stack's nodes."""
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
    """The Authorization header that a request carries."""
    with rest.client(server) as client:
        request = client.build_request("GET", "runs/get")
        flow = client._build_request_auth(request).sync_auth_flow(request)
        return next(flow).headers.get("Authorization")


def test_the_platforms_account_goes_to_the_platforms_server_alone() -> None:
    assert str(sent_to(OWN)).startswith("Basic ")
    assert sent_to("http://elsewhere:5000") is None


def test_a_jobs_own_token_and_account_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "t")
    assert sent_to(OWN) == sent_to("http://elsewhere:5000") == "Bearer t"
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "mine")
    assert str(sent_to("http://elsewhere:5000")).startswith("Basic ")


def test_a_file_of_another_form_is_no_account(home: Path) -> None:
    (home / ".mlflow" / "credentials").write_text("[other]\n")
    assert sent_to(OWN) is None
    (home / ".mlflow" / "credentials").unlink()
    assert sent_to(OWN) is None
