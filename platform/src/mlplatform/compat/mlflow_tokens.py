"""Tokens of people and of their jobs' attempts, as passwords at the MLflow server.

The gateway's database has a view of the tokens that are valid now, which the server's role at Postgres may read. MLflow
remembers a password that was right for `auth_cache_ttl_seconds`, so that a revoked token is refused after that time.

MLflow 3.17 has one password per user, and two other ways. Its `authorization_function`, as its source shows, replaces
all of its authentication, with its cache of right passwords, where the platform only needs another kind of password.
Its workspaces, which were tried, need a header with each request: without it, an experiment of another workspace does
not exist, even by its id, so that links between teams and the gateway's own requests fail.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import threading
import time
from collections.abc import Mapping
from typing import Any

from mlplatform.compat.mlflow_owners import Owner, acting
from mlplatform.contract import PERSON_TOKEN

_REMEMBERED_SECONDS = 30.0

_NOT_FOR_JOBS = (
    "delete|delete-(?!tag$)[a-z-]*|restore|rename|permissions?|users?|roles?|webhooks?|scorers?|gateway|gateway-proxy|"
    "workspaces?|demo|signup|experiments/update|assistant|mcp-servers?|jobs"
)

_FOR_JOBS = {
    "GET": re.compile(".*"),
    "HEAD": re.compile(".*"),
    # `tests/embedded/compat` has the list of MLflow's routes that these two allow.
    "POST": re.compile(rf"^(?!.*/({_NOT_FOR_JOBS})(/|$)).*$"),
    "PATCH": re.compile(rf"^(?!.*/({_NOT_FOR_JOBS})(/|$)).*$"),
    "PUT": re.compile(r"^.*/mlflow-artifacts/.*$"),
}
"""Paths by method that a job may use: it logs, and registers models. It deletes nothing, and manages no rights."""


class Tokens:
    """Valid tokens in the gateway's database.

    Args:
        url: SQLAlchemy URL of the gateway's database, read with the server's own role.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._engine: Any = None
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, Owner | None, str]] = {}

    def owner(self, token: str) -> Owner | None:
        """Return whose token it is; None if it is not valid."""
        match = PERSON_TOKEN.fullmatch(token)
        if match is None:
            return None
        found = self._known.get(match[1])
        if found is None or time.monotonic() - found[0] > _REMEMBERED_SECONDS:
            found = self._read(match[1])
        _, owner, digest = found
        return owner if owner and hmac.compare_digest(hashlib.sha256(match[2].encode()).hexdigest(), digest) else None

    def _read(self, token_id: str) -> tuple[float, Owner | None, str]:
        from sqlalchemy import create_engine, text

        with self._lock:
            if self._engine is None:
                self._engine = create_engine(self._url, pool_size=2, pool_pre_ping=True)
        query = text("SELECT digest, kind, owner FROM valid_tokens WHERE id = :id")
        with self._engine.connect() as connection:
            row = connection.execute(query, {"id": token_id}).one_or_none()
        if row is None:
            self._known.pop(token_id, None)  # ids that do not exist would fill the memory
            return 0.0, None, ""
        found = time.monotonic(), Owner(row.owner, row.kind == "job"), str(row.digest)
        self._known[token_id] = found
        return found


def accept(tokens: Tokens) -> None:
    """Accept tokens as passwords of their owners, whose accounts are created with the first use.

    `mlflow.server.auth.store.authenticate_user`, which every way of authentication calls; it is wrapped after
    `mlflow_server.check_passwords` has replaced it.
    """
    import secrets

    from mlflow.exceptions import MlflowException
    from mlflow.server.auth import store

    original = store.authenticate_user

    def authenticate_user(username: str, password: str, **options: Any) -> bool:
        if not PERSON_TOKEN.fullmatch(password):
            return bool(original(username, password, **options))
        owner = tokens.owner(password)
        if owner is None or owner.name != username:
            return False
        if not store.has_user(username):
            try:
                store.create_user(username, secrets.token_urlsafe(32))
            except MlflowException:  # another process has created it
                return bool(store.has_user(username))
        return True

    store.authenticate_user = authenticate_user  # type: ignore[method-assign]


class KnownCallers:
    """An ASGI application around MLflow's: knows whose token a request has, and refuses to jobs what they may not do.

    Not a hook of Flask, because MLflow 3.17 uploads files, among others, past it (`fastapi_app.create_fastapi_app`).
    """

    def __init__(self, app: Any, tokens: Tokens) -> None:
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request; whatever it calls, in threads too, finds the owner of its token in `mlflow_owners`."""
        import anyio.to_thread

        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            scope, password = _canonical(scope)
        except ValueError:
            await _reject(send)
            return
        owner = None
        if PERSON_TOKEN.fullmatch(password):
            owner = await anyio.to_thread.run_sync(self._tokens.owner, password)
            if owner is None:
                # MLflow remembers for a while that it was right, and would serve it without the rules for jobs.
                await _reject(send)
                return
        if owner and owner.job and not may_job(scope["method"], scope["path"]):
            await _refuse(
                send, f"A job of {owner.name} may log and register, but not {scope['method']} {scope['path']}."
            )
            return
        with acting(owner):
            await self._app(scope, receive, send)


def _canonical(scope: Any) -> tuple[Any, str]:
    """Return a request with one credential in the one spelling that every reader of MLflow understands alike.

    MLflow has several readers: of Flask, of its own for routes past Flask, and of another header for its AI gateway,
    which is off. A request with two credentials, or with one that they read differently, could pass the rules as one
    caller and be served as another.

    Returns:
        The request, and its password; empty without a credential.

    Raises:
        ValueError: there is more than one credential, or it is not a name and a password.
    """
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(given) > 1:
        raise ValueError("two credentials")
    headers = [(name, value) for name, value in scope["headers"] if name not in (b"authorization", _OTHER)]
    password = ""
    if given:
        scheme, _, encoded = given[0].decode("latin-1").strip().partition(" ")
        credential = base64.b64decode(encoded.strip(), validate=True)
        name, colon, password = credential.decode().partition(":")
        if scheme.lower() != "basic" or not colon or not name:
            raise ValueError("no name and password")
        headers.append((b"authorization", b"Basic " + base64.b64encode(credential)))
    return {**scope, "headers": headers}, password


_OTHER = b"x-mlflow-authorization"


async def _reject(send: Any) -> None:
    """Answer as MLflow does to whoever has no valid credential."""
    body = b"You are not authenticated. Pass the name and the password of an account, or a valid token."
    headers = [
        (b"content-type", b"text/plain"),
        (b"www-authenticate", b'Basic realm="mlflow"'),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _refuse(send: Any, sentence: str) -> None:
    """Answer as MLflow does to whoever lacks a permission."""
    body = json.dumps({"error_code": "PERMISSION_DENIED", "message": sentence}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def may_job(method: str, path: str, allowed: Mapping[str, re.Pattern[str]] = _FOR_JOBS) -> bool:
    """Return whether a job may send a request."""
    return method in allowed and allowed[method].match(path) is not None
