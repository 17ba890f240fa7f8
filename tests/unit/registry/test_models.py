"""Parts of the registry that do not need a server: model names and webhook signatures."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mlplatform.errors import AccessError, RegistryError, SettingsError, UnreachableError
from mlplatform.registry import lookup, webhooks

SECRET = "of both sides"
MESSAGE = {
    "entity": "model_version_alias",
    "action": "created",
    "timestamp": "2026-11-21T05:00:00+00:00",
    "data": {"name": "digits", "alias": "champion", "version": "3"},
}


def posted(message: object = MESSAGE, secret: str = SECRET, sent: float | None = None) -> tuple[dict[str, str], bytes]:
    """Headers and body of a delivery as standardwebhooks.com specifies them, with MLflow's header names."""
    body = json.dumps(message).encode()
    stamp = str(int(time.time() if sent is None else sent))
    signature = hmac.new(secret.encode(), f"delivery-1.{stamp}.".encode() + body, hashlib.sha256).digest()
    headers = {
        "X-MLflow-Delivery-Id": "delivery-1",
        "X-MLflow-Timestamp": stamp,
        "X-MLflow-Signature": f"v1,{base64.b64encode(signature).decode()}",
    }
    return headers, body


def test_signed_promotion_is_read() -> None:
    assert webhooks.promotion(*posted(), SECRET) == webhooks.Promotion("digits", "champion", "3")


def test_header_names_may_have_any_case() -> None:
    headers, body = posted()
    lower = {name.lower(): value for name, value in headers.items()}
    assert webhooks.promotion(lower, body, SECRET).version == "3"


def test_delivery_without_valid_signature_is_rejected() -> None:
    headers, body = posted()
    for given, content in ((posted(secret="guessed")[0], body), (headers, body.replace(b"3", b"4")), ({}, body)):
        with pytest.raises(AccessError, match="does not have the webhook's signature"):
            webhooks.promotion(given, content, SECRET)


def test_replayed_message_is_rejected() -> None:
    with pytest.raises(AccessError, match="more than 5 minutes off"):
        webhooks.promotion(*posted(sent=time.time() - 301), SECRET)


def test_other_event_is_rejected() -> None:
    with pytest.raises(RegistryError, match="about model_version created, not a promotion"):
        webhooks.promotion(*posted({**MESSAGE, "entity": "model_version"}), SECRET)


@pytest.mark.parametrize(
    "model", ["digits", "digits@", "@champion", "digits/3/4", "digits/latest", "models:/m-123", ""]
)
def test_model_name_requires_alias_or_version(model: str) -> None:
    with pytest.raises(RegistryError, match="neither name@alias nor name/version"):
        lookup.parts(model)


def test_model_uri_is_accepted_as_name() -> None:
    assert lookup.parts("models:/digits@champion") == lookup.parts("digits@champion")
    assert lookup.parts("models:/digits/3") == ("digits", "/", "3")


def test_webhooks_require_administrator(serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", serve(lambda method, path: (403, "no")))
    message = r"rejected the account \(403\): only MLflow's administrator may manage webhooks; pass --account"
    with pytest.raises(AccessError, match=message):
        webhooks.webhooks()


def test_rejected_webhook_url_error_has_servers_reason(
    serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = json.dumps({"error_code": "INVALID_PARAMETER_VALUE", "message": "Invalid webhook URL scheme: 'http'."})
    monkeypatch.setenv("MLFLOW_TRACKING_URI", serve(lambda method, path: (400, reason)))
    with pytest.raises(RegistryError, match=r"rejected webhooks \(400\): Invalid webhook URL scheme: 'http'"):
        webhooks.add("http://receiver", SECRET)


def test_unreachable_server_is_named(monkeypatch: pytest.MonkeyPatch, closed_port: int) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{closed_port}")
    with pytest.raises(UnreachableError, match=f"http://127.0.0.1:{closed_port} .* does not answer"):
        webhooks.webhooks()


def test_empty_secret_is_rejected() -> None:
    with pytest.raises(SettingsError, match="openssl rand -hex 32"):
        webhooks.add("https://receiver", "")


def test_missing_secret_file_error_shows_command(tmp_path: Path) -> None:
    words = ("models", "add-webhook", "https://receiver", "--secret-file", str(tmp_path / "none"))
    done = subprocess.run([sys.executable, "-m", "mlplatform", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"The file {tmp_path / 'none'} does not exist; `openssl rand" in done.stderr
    assert len(done.stderr.splitlines()) == 1
