"""Clients of MLflow's REST API without `import mlflow`, which takes 4 s of CPU time; one blocking, one for asyncio.

Both map failures to the same errors with the same messages, and follow MLflow's pagination.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypedDict
from urllib.parse import quote

import httpx

from mlplatform.client.certificates import verification
from mlplatform.errors import AccessError, PlatformError, UnreachableError
from mlplatform.secrets.credentials import read_mlflow_account
from mlplatform.settings import proxies
from mlplatform.settings.accounts import TrackingAccount
from mlplatform.settings.job import settings

_API = "/api/2.0/mlflow/"

_ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts"

_SECONDS = 30.0

_CREDENTIALS = Path("~/.mlflow/credentials")
"""The one file in which MLflow's client looks for an account (`mlflow.utils.credentials`, 3.17)."""

_OWN_ACCOUNT = "put your account into ~/.mlflow/credentials, as `mlplatform login` does"

_VARIABLES = "correct or unset MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD and MLFLOW_TRACKING_TOKEN"


class RejectedError(PlatformError):
    """MLflow rejected a request with a status from 400 to 499 other than 401 and 403; a retry does not help."""

    def __init__(self, message: str, status: int, code: str, reason: str) -> None:
        """Compose the error.

        Args:
            message: whole sentence with address and path.
            status: HTTP status.
            code: MLflow's `error_code`, such as RESOURCE_DOES_NOT_EXIST.
            reason: first line of MLflow's own message.
        """
        super().__init__(message)
        self.status = status
        self.code = code
        self.reason = reason


@dataclass(frozen=True)
class Account:
    """Identity that a client presents: user and password, a bearer token, or nothing.

    Attributes:
        remedy: advice for when MLflow rejects the account; the end of a sentence.
    """

    login: tuple[str, str] | None = None
    token: str | None = None
    remedy: str = _OWN_ACCOUNT


def own_account(tracking_uri: str) -> Account:
    """Return the account of this process: the job's own, else the platform's; the latter for its server only.

    The order is that of `tracking.plugin.JobsOwnKey`, which MLflow's own client uses on the platform's nodes.
    """
    platform = settings().platform_tracking_uri
    own = TrackingAccount.load().at(tracking_uri, platform)
    if own.login or own.token:
        return Account(own.login, None if own.login else own.token, _VARIABLES)
    foreign = platform is not None and platform.rstrip("/") != tracking_uri.rstrip("/")
    file = _CREDENTIALS.expanduser()
    if foreign or not file.is_file():
        return Account()
    try:
        return Account(read_mlflow_account(file))
    except KeyError:
        return Account()


def account_in(file: Path) -> Account:
    """Return the account in a file that `credentials.mlflow_account` wrote.

    Raises:
        SettingsError: there is no such file.
    """
    return Account(read_mlflow_account(file), remedy=f"correct the account in {file}")


class MlflowRest:
    """Blocking client of one MLflow server; a context manager that closes its connections.

    Every request raises:
        UnreachableError: nothing answers, what answers is not MLflow, or MLflow failed with a status of 500 or above.
        AccessError: MLflow rejected the account (401, 403).
        RejectedError: MLflow rejected the request itself.
    """

    def __init__(
        self,
        tracking_uri: str,
        account: Account | None = None,
        timeout_s: float = _SECONDS,
        connect_s: float | None = None,
    ) -> None:
        """Set up the client; it connects with the first request.

        Args:
            tracking_uri: address of MLflow, `http://` or `https://`.
            account: None means `own_account`.
            timeout_s: seconds without a byte after which MLflow counts as unavailable.
            connect_s: seconds without a connection after which it does; None means `timeout_s`.
        """
        self._server = _Server(tracking_uri, own_account(tracking_uri) if account is None else account)
        self._http = httpx.Client(**self._server.options(timeout_s, connect_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def call(self, method: str, path: str, values: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send values, as query of a GET and as JSON of any other method; return MLflow's answer."""
        try:
            answer = self._http.request(method, path, **_sent(method, values))
        except httpx.TransportError as error:
            raise self._server.unavailable(error) from error
        return self._server.read(path, answer)

    def all(self, method: str, path: str, field: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the entries below `field` in every page of a search."""
        found: list[dict[str, Any]] = []
        page: Mapping[str, Any] | None = values
        while page is not None:
            answer = self.call(method, path, page)
            found += answer.get(field, [])
            page = _next_page(values, answer)
        return found


class AsyncMlflowRest:
    """`MlflowRest` for asyncio, with the same methods and errors."""

    def __init__(self, tracking_uri: str, account: Account | None = None) -> None:
        """Connect with the first request; the arguments are those of `MlflowRest`."""
        self._server = _Server(tracking_uri, own_account(tracking_uri) if account is None else account)
        self._http = httpx.AsyncClient(**self._server.options(_SECONDS))
        self._artifacts = f"{tracking_uri.rstrip('/')}{_ARTIFACTS}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def call(self, method: str, path: str, values: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Do the same as `MlflowRest.call`."""
        try:
            answer = await self._http.request(method, path, **_sent(method, values))
        except httpx.TransportError as error:
            raise self._server.unavailable(error) from error
        return self._server.read(path, answer)

    async def list_files(self, folder: str) -> list[dict[str, Any]]:
        """Return what a folder of the server's artifacts has: `path`, its last part; `is_dir`; and `file_size`."""
        found: list[dict[str, Any]] = (await self.call("GET", self._artifacts, {"path": folder})).get("files", [])
        return found

    async def read_file(self, path: str) -> AsyncIterator[bytes]:
        """Yield the parts of a file of the server's artifacts."""
        try:
            async with self._http.stream("GET", f"{self._artifacts}/{quote(path)}") as answer:
                if not answer.is_success:
                    await answer.aread()
                    self._server.read(path, answer)
                async for part in answer.aiter_bytes():
                    yield part
        except httpx.TransportError as error:
            raise self._server.unavailable(error) from error

    async def all(self, method: str, path: str, field: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Do the same as `MlflowRest.all`."""
        found: list[dict[str, Any]] = []
        page: Mapping[str, Any] | None = values
        while page is not None:
            answer = await self.call(method, path, page)
            found += answer.get(field, [])
            page = _next_page(values, answer)
        return found


class _Options(TypedDict, total=False):
    """Keyword arguments that both httpx clients have."""

    base_url: str
    auth: tuple[str, str] | None
    headers: dict[str, str]
    timeout: httpx.Timeout
    verify: ssl.SSLContext | bool
    trust_env: bool


@dataclass(frozen=True)
class _Server:
    """An MLflow server: the options for connecting to it, and the errors that its answers stand for."""

    tracking_uri: str
    account: Account

    def options(self, timeout_s: float, connect_s: float | None = None) -> _Options:
        variables = TrackingAccount.load()
        token = self.account.token
        return {
            "base_url": f"{self.tracking_uri.rstrip('/')}{_API}",
            "auth": self.account.login,
            "headers": {"Authorization": f"Bearer {token}"} if token else {},
            "timeout": httpx.Timeout(timeout_s, connect=timeout_s if connect_s is None else connect_s),
            "verify": _verification(self.tracking_uri, variables),
            "trust_env": proxies.uses_environment(self.tracking_uri),
        }

    def unavailable(self, error: httpx.TransportError) -> UnreachableError:
        reason = str(error) or type(error).__name__
        return UnreachableError(
            f"{self} does not answer ({reason}); start it or correct the address.{proxies.hint(self.tracking_uri)}"
        )

    def read(self, path: str, answer: httpx.Response) -> dict[str, Any]:
        """Return the answer's JSON object, or raise the error that it stands for."""
        status = answer.status_code
        if status in (401, 403):
            hint = proxies.hint(self.tracking_uri)
            raise AccessError(f"{self} rejected the account ({status}); {self.account.remedy}.{hint}")
        try:
            content = answer.json()
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise UnreachableError(
                f"The server at {self.tracking_uri} (MLFLOW_TRACKING_URI) is not MLflow: it answered {path} with "
                f"{status}; correct the address.{proxies.hint(self.tracking_uri)}"
            )
        if answer.is_success:
            return content
        code, lines = str(content.get("error_code", "")), str(content.get("message", "")).splitlines()
        reason = lines[0] if lines else code or "no reason was given"
        if status >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise UnreachableError(f"{self} failed on {path} with {status}: {reason}; see its log.")
        raise RejectedError(f"{self} rejected {path} ({status}): {reason}", status, code, reason)

    def __str__(self) -> str:
        return f"MLflow at {self.tracking_uri} (MLFLOW_TRACKING_URI)"


def _verification(tracking_uri: str, account: TrackingAccount) -> ssl.SSLContext | bool:
    """Return the certificates with which the server's own is verified; False to accept any."""
    if (authority := account.certificate_authority) and tracking_uri.lower().startswith("https://"):
        return ssl.create_default_context(cafile=authority)
    return False if account.insecure_tls else verification(tracking_uri)


def _sent(method: str, values: Mapping[str, Any] | None) -> dict[str, Any]:
    return {} if values is None else {"params" if method == "GET" else "json": values}


def _next_page(values: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any] | None:
    token = answer.get("next_page_token")
    return {**values, "page_token": token} if token else None
