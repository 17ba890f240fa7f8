"""Changes at the MLflow server, which it reports to the gateway: who has changed what that others rely on.

The gateway writes each into its audit log, and takes the digests of a new version of a model. The reports wait in
memory while the gateway does not answer; a version whose report is lost is found by the gateway's own search, and a
change also has a line in the server's log.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from mlplatform.contract import MLFLOW_CHANGES
from mlplatform.services.mlflow_rights import account_of

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

_BODY_BYTES = 64 << 10

_WAITING = 10_000
"""Reports that wait for the gateway at most; the oldest are dropped first."""

_RETRY_SECONDS = 5.0

_TIMEOUT = httpx.Timeout(10.0)


def reported(app: Any, report: Callable[[Mapping[str, Any]], None]) -> Any:
    """Return an ASGI application that reports each change which it has made.

    Args:
        app: MLflow's application, behind `with_roles`.
        report: called with a change: account, address, method, path, and what it names.
    """

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not is_change(scope["method"], scope["path"]):
            await app(scope, receive, send)
            return
        status, body = 0, b""

        async def hear() -> Any:
            nonlocal body
            message = await receive()
            if len(body) <= _BODY_BYTES:
                body += message.get("body", b"")
            return message

        async def say(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        await app(scope, hear, say)
        if 200 <= status < 300:
            address = (scope.get("client") or ("",))[0]
            change = {"account": account_of(scope), "address": address, "method": scope["method"]}
            report({**change, "path": scope["path"], "values": _named(body)})

    return watched


def is_change(method: str, path: str) -> bool:
    """Return whether a request changes what is recorded; calls that log, and uploads, do not."""
    if method in ("GET", "HEAD", "OPTIONS") or _READS.match(path):
        return False
    return _CHANGES.match(path) is not None or (method == "DELETE" and not path.endswith("/delete-tag"))


def _named(body: bytes) -> dict[str, str]:
    """Return what a request names, as text; empty if its body is not an object of JSON."""
    try:
        values = json.loads(body) if body else {}
    except ValueError:
        return {}
    if not isinstance(values, dict):
        return {}
    return {key: str(values[key])[:200] for key in _SHOWN if isinstance(values.get(key), str | int)}


class Reporter:
    """Sends reports to the gateway, in their order, in the background of the event loop that serves requests.

    Args:
        address: address of the gateway.
        token: token that the gateway accepts for reports.
    """

    def __init__(self, address: str, token: str) -> None:
        self._address = address
        self._headers = {"Authorization": f"Bearer {token}"}
        self._waiting: deque[Mapping[str, Any]] = deque(maxlen=_WAITING)
        self._task: asyncio.Task[None] | None = None

    def __call__(self, change: Mapping[str, Any]) -> None:
        """Write a change to the log, and send it once the gateway answers."""
        print(f"change {json.dumps(change)}", file=sys.stderr, flush=True)
        self._waiting.append(change)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._send())

    async def _send(self) -> None:
        async with httpx.AsyncClient(base_url=self._address, timeout=_TIMEOUT, trust_env=False) as client:
            while self._waiting:
                change = self._waiting[0]
                if not await self._sent(client, change):
                    await asyncio.sleep(_RETRY_SECONDS)
                elif self._waiting and self._waiting[0] is change:
                    self._waiting.popleft()

    async def _sent(self, client: httpx.AsyncClient, change: Mapping[str, Any]) -> bool:
        try:
            answer = await client.post(MLFLOW_CHANGES, json=change, headers=self._headers)
        except httpx.TransportError:
            return False
        # A report that the gateway understands to be wrong will not become right.
        return answer.is_success or answer.status_code in (400, 413, 422)
