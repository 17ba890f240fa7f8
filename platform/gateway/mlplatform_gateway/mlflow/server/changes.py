"""Changes at the MLflow server, which it reports to the gateway: who has changed what that others rely on.

The gateway writes each into its audit log, and takes the digests of a new version of a model. The reports wait in
memory while the gateway does not answer; a version whose report is lost is found by the gateway's own search, and a
change also has a line in the server's log.
"""

from __future__ import annotations

import json
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import httpx

from mlplatform.contract import MLFLOW_CHANGES

_API = r"/(ajax-api|api)/[0-9.]+/mlflow"

_CHANGES = re.compile(
    rf"{_API}/(registered-models|model-versions|(.+/)?(users|roles|permissions))(/|$)|"
    rf"{_API}/(.+/)?(delete(?!-tag$)[a-z-]*|restore|rename)$|/signup$"
)
"""Paths that change registered models, versions, aliases, permissions or users, or delete, restore or rename."""

_READS = re.compile(r".*/(get-latest-versions|search|check)$")

_SHOWN = (
    *("name", "version", "alias", "new_name", "key", "stage", "username", "permission", "role_id"),
    *("resource_type", "resource_id", "experiment_id", "run_id", "model_id"),
)
"""Fields of a request that say what it changes. Others may be passwords, or long."""

_WAITING = 10_000
"""Reports that wait for the gateway at most; later ones are dropped."""

_RETRY_SECONDS = 5.0
_TIMEOUT = httpx.Timeout(10.0)


def report_changes(app: Any, report: Callable[[Mapping[str, Any]], None]) -> None:
    """Report each change that requests to MLflow have made.

    Args:
        app: MLflow's Flask application, which all paths in `_CHANGES` end in.
        report: called with a change: account, address, method, path, and what it names.
    """
    from flask import request

    def after_request(response: Any) -> Any:
        if 200 <= response.status_code < 300 and is_change(request.method, request.path):
            account = request.authorization.username if request.authorization else ""
            change = {"account": account, "address": request.remote_addr or "", "method": request.method}
            values = named(request.get_json(force=True, silent=True))
            report({**change, "path": request.path, "values": values})
        return response

    app.after_request(after_request)


def is_change(method: str, path: str) -> bool:
    """Return whether a request changes what is recorded; calls that log, and uploads, do not."""
    if method in ("GET", "HEAD", "OPTIONS") or _READS.match(path):
        return False
    return _CHANGES.match(path) is not None or (method == "DELETE" and not path.endswith("/delete-tag"))


def named(values: Any) -> dict[str, str]:
    """Return what the body of a request names, as text; empty if it is not an object of JSON."""
    if not isinstance(values, dict):
        return {}
    return {key: str(values[key])[:200] for key in _SHOWN if isinstance(values.get(key), str | int)}


class Reporter:
    """Sends reports to the gateway, in their order, in a thread of its own.

    Args:
        address: address of the gateway.
        token: token that the gateway accepts for reports.
    """

    def __init__(self, address: str, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        self._client = httpx.Client(base_url=address, headers=headers, timeout=_TIMEOUT, trust_env=False)
        self._waiting: queue.Queue[Mapping[str, Any]] = queue.Queue(_WAITING)
        threading.Thread(target=self._send, daemon=True).start()

    def __call__(self, change: Mapping[str, Any]) -> None:
        """Write a change to the log, and send it once the gateway answers."""
        print(f"change {json.dumps(change)}", file=sys.stderr, flush=True)
        with suppress(queue.Full):
            self._waiting.put_nowait(change)

    def _send(self) -> None:
        while True:
            change = self._waiting.get()
            while not self._is_sent(change):
                time.sleep(_RETRY_SECONDS)

    def _is_sent(self, change: Mapping[str, Any]) -> bool:
        try:
            answer = self._client.post(MLFLOW_CHANGES, json=change)
        except httpx.TransportError:
            return False
        # A report that the gateway understands to be wrong will not become right.
        return answer.is_success or answer.status_code in (400, 413, 422)
