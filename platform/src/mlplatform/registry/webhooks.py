"""Webhooks for promotions: MLflow posts to each receiver, signed, the version that an alias now points at.

MLflow delivers in the background and tries four times within about ten seconds. A receiver that was unavailable for
longer should read the current champion with `registry.lookup.resolve` when it starts. Promoting again delivers again.
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
from mlplatform.mlflow_rest import MlflowRest, RejectedError, account_in
from mlplatform.tracking import server

_EVENT = {"entity": "MODEL_VERSION_ALIAS", "action": "CREATED"}

_TIMEOUT_SECONDS = 60.0

_PAGE = 100
"""Webhooks per request; MLflow accepts no more."""

_TOLERANCE_SECONDS = 300
"""Age in seconds beyond which a message counts as replayed, as standardwebhooks.com recommends."""


@dataclass(frozen=True)
class Webhook:
    """A receiver that is registered with MLflow."""

    id: str
    name: str
    url: str


@dataclass(frozen=True)
class Promotion:
    """Content of a delivery: the alias of the model now points at this version."""

    model: str
    alias: str
    version: str


def add(url: str, secret: str, *, name: str | None = None, account: Path | None = None) -> Webhook:
    """Add a webhook: MLflow posts every promotion to `url`, signed with `secret`; `promotion` verifies it.

    Args:
        url: address of the receiver.
        secret: shared secret; `openssl rand -hex 32` makes one.
        name: name of the webhook; None means "promotions".
        account: file with an administrator's account, `secrets/mlflow_admin` on a stack; the embedded platform needs
            none.

    Raises:
        RegistryError: MLflow rejected the address because of WEBHOOK_SCHEMES or WEBHOOK_PRIVATE_ADDRESSES.
        AccessError: the account is missing or not an administrator's.
        SettingsError: the secret is empty, or MLFLOW_TRACKING_URI is not set.
        UnreachableError: MLflow does not answer.
    """
    if not secret:
        raise SettingsError("The webhook's secret is empty; `openssl rand -hex 32` makes one.")
    body = {"name": name or "promotions", "url": url, "secret": secret, "events": [_EVENT]}
    with _mlflow(account) as mlflow:
        return _webhook(mlflow.call("POST", "webhooks", body)["webhook"])


def webhooks(account: Path | None = None) -> list[Webhook]:
    """Return every receiver, for all kinds of events."""
    with _mlflow(account) as mlflow:
        return [_webhook(entry) for entry in mlflow.all("GET", "webhooks", "webhooks", {"max_results": _PAGE})]


def remove(webhook_id: str, account: Path | None = None) -> None:
    """Remove a webhook.

    Raises:
        RegistryError: there is no such webhook.
    """
    with _mlflow(account) as mlflow:
        mlflow.call("DELETE", f"webhooks/{webhook_id}")


def send_example(webhook_id: str, account: Path | None = None) -> None:
    """Send a test delivery to a receiver and wait for its answer.

    Raises:
        RegistryError: the receiver did not answer or did not accept the delivery; the message has the reason.
    """
    with _mlflow(account) as mlflow:
        result = mlflow.call("POST", f"webhooks/{webhook_id}/test", {})["result"]
    if not result.get("success"):
        reason = result.get("error_message") or f"it answered {result.get('response_status')}"
        raise RegistryError(f"The receiver of webhook {webhook_id} did not accept the delivery: {reason}.")


def promotion(headers: Mapping[str, str], body: bytes, secret: str) -> Promotion:
    """Return the promotion in a delivery, after verifying its signature and age.

    The signature is HMAC-SHA256 over `<delivery id>.<time>.<body>`, as standardwebhooks.com specifies.

    Args:
        headers: headers of the request, in any case.
        body: its body, unchanged.
        secret: the webhook's secret.

    Raises:
        AccessError: the signature is missing or wrong, or the message's time is more than 5 minutes off.
        RegistryError: the message is not about an alias.
    """
    given = {key.lower(): value for key, value in headers.items()}
    sent = given.get("x-mlflow-timestamp", "")
    signed = f"{given.get('x-mlflow-delivery-id', '')}.{sent}.".encode() + body
    signature = b"v1," + base64.b64encode(hmac.new(secret.encode(), signed, hashlib.sha256).digest())
    if not hmac.compare_digest(signature, given.get("x-mlflow-signature", "").encode()):
        raise AccessError("The message does not have the webhook's signature; compare the secrets of both sides.")
    if abs(time.time() - float(sent)) > _TOLERANCE_SECONDS:
        raise AccessError(f"The message's time {sent} is more than 5 minutes off; it is a replay, or a clock is wrong.")
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
        with MlflowRest(uri, account_in(account) if account else None, _TIMEOUT_SECONDS) as mlflow:
            yield mlflow
    except AccessError as error:
        raise AccessError(
            f"{error.args[0].partition(';')[0]}: only MLflow's administrator may manage webhooks; "
            "pass --account secrets/mlflow_admin."
        ) from error
    except RejectedError as error:
        raise RegistryError(str(error)) from error
