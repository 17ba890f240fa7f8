"""Programs that are told of a promotion: MLflow posts them which version an alias now points at, signed.

MLflow delivers in the background and tries four times within about ten seconds; a receiver that was away longer asks
`registry.resolve` for the present champion when it starts. Promoting again delivers again.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlplatform.errors import AccessError, RegistryError, SettingsError
from mlplatform.mlflow_rest import Account, MlflowRest, RejectedError, account_in
from mlplatform.tracking import server

_EVENT = {"entity": "MODEL_VERSION_ALIAS", "action": "CREATED"}

_TIMEOUT_SECONDS = 60.0

_PAGE = 100
"""Webhooks per request; MLflow accepts no more."""

_TOLERANCE_SECONDS = 300
"""Age beyond which a message counts as replayed; what standardwebhooks.com recommends."""


@dataclass(frozen=True)
class Webhook:
    """A receiver that MLflow knows."""

    id: str
    name: str
    url: str


@dataclass(frozen=True)
class Promotion:
    """What a receiver is told: the alias of the model now points at this version."""

    model: str
    alias: str
    version: str


def add(url: str, secret: str, *, name: str | None = None, account: Path | None = None) -> Webhook:
    """Have every promotion posted to `url`, signed with `secret`, which the receiver gives to `promotion`.

    Args:
        account: file with an administrator's account, `secrets/mlflow_admin` on a stack; the embedded one needs none.

    Raises:
        RegistryError: MLflow refuses the address, by the settings WEBHOOK_SCHEMES and WEBHOOK_PRIVATE_ADDRESSES.
        AccessError: the account is missing or no administrator's.
    """
    if not secret:
        raise SettingsError("The webhook's secret is empty; `openssl rand -hex 32` makes one.")
    body = {"name": name or "promotions", "url": url, "secret": secret, "events": [_EVENT]}
    with _mlflow(account) as mlflow:
        return _webhook(mlflow.call("POST", "webhooks", body)["webhook"])


def webhooks(account: Path | None = None) -> list[Webhook]:
    """Every receiver, whatever it is told of."""
    with _mlflow(account) as mlflow:
        return [_webhook(entry) for entry in mlflow.all("GET", "webhooks", "webhooks", {"max_results": _PAGE})]


def remove(webhook_id: str, account: Path | None = None) -> None:
    """Tell a receiver no more.

    Raises:
        RegistryError: there is no such webhook.
    """
    with _mlflow(account) as mlflow:
        mlflow.call("DELETE", f"webhooks/{webhook_id}")


def send_example(webhook_id: str, account: Path | None = None) -> None:
    """Post an example to a receiver and wait for its answer.

    Raises:
        RegistryError: it did not answer, or not with success; the message says how.
    """
    with _mlflow(account) as mlflow:
        result = mlflow.call("POST", f"webhooks/{webhook_id}/test", {})["result"]
    if not result.get("success"):
        said = result.get("error_message") or f"it answered {result.get('response_status')}"
        raise RegistryError(f"The receiver of webhook {webhook_id} was not reached: {said}.")


def promotion(headers: Mapping[str, str], body: bytes, secret: str) -> Promotion:
    """Read what MLflow has posted to a receiver, if it bears the signature of `secret` and is not old.

    The signature is HMAC-SHA256 over `<delivery id>.<time>.<body>`, as standardwebhooks.com lays down.

    Raises:
        AccessError: the signature is missing or wrong, or the message is older than 5 minutes.
        RegistryError: it is not about an alias.
    """
    given = {key.lower(): value for key, value in headers.items()}
    sent = given.get("x-mlflow-timestamp", "")
    signed = f"{given.get('x-mlflow-delivery-id', '')}.{sent}.".encode() + body
    signature = b"v1," + base64.b64encode(hmac.new(secret.encode(), signed, hashlib.sha256).digest())
    if not hmac.compare_digest(signature, given.get("x-mlflow-signature", "").encode()):
        raise AccessError("The message does not bear the webhook's signature; compare the secret of both sides.")
    if abs(time.time() - float(sent)) > _TOLERANCE_SECONDS:
        raise AccessError(f"The message is from {sent}, more than 5 minutes off; it was replayed, or a clock is wrong.")
    message = json.loads(body)
    if message.get("entity") != "model_version_alias" or message.get("action") != "created":
        raise RegistryError(f"The message is about {message.get('entity')} {message.get('action')}, not a promotion.")
    data = message["data"]
    return Promotion(data["name"], data["alias"], str(data["version"]))


def _webhook(entry: Mapping[str, Any]) -> Webhook:
    return Webhook(entry["webhook_id"], entry["name"], entry["url"])


@contextmanager
def _mlflow(account: Path | None) -> Iterator[MlflowRest]:
    """Connect to MLflow as an administrator, and turn its rejections into this module's errors."""
    uri = server.uri()
    if uri is None:
        raise SettingsError("MLFLOW_TRACKING_URI is not set, so MLflow's address is unknown; set it to your MLflow.")
    try:
        with MlflowRest(uri, account_in(account) if account else Account(), _TIMEOUT_SECONDS) as mlflow:
            yield mlflow
    except AccessError as error:
        raise AccessError(
            f"{error.args[0].partition(';')[0]}: only MLflow's administrator may manage webhooks; "
            "pass --account secrets/mlflow_admin."
        ) from error
    except RejectedError as error:
        raise RegistryError(str(error)) from error
