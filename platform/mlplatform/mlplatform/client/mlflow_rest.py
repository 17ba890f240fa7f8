"""Client of MLflow's REST API without `import mlflow`, which takes 4 s of CPU time.

The gateway's client for asyncio shares the options, the errors and their messages (`mlplatform_gateway.mlflow.rest`).
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, TypedDict

import httpx

from mlplatform.client.certificates import verification
from mlplatform.errors import AccessError, PlatformError, UnreachableError
from mlplatform.secrets.credentials import read_mlflow_account
from mlplatform.settings import proxies
from mlplatform.settings.accounts import TrackingAccount
from mlplatform.settings.job import mlflow_credentials_file, settings

_API = "/api/2.0/mlflow/"

ANSWER_SECONDS = 30.0

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
    file = mlflow_credentials_file()
    if foreign or not file.is_file():
        return Account()
    try:
        return Account(read_mlflow_account(file))
    except KeyError:
        return Account()


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
        timeout_s: float = ANSWER_SECONDS,
        connect_s: float | None = None,
    ) -> None:
        """Set up the client; it connects with the first request.

        Args:
            tracking_uri: address of MLflow, `http://` or `https://`.
            account: None means `own_account`.
            timeout_s: seconds without a byte after which MLflow counts as unavailable.
            connect_s: seconds without a connection after which it does; None means `timeout_s`.
        """
        self._server = MlflowServer(tracking_uri, own_account(tracking_uri) if account is None else account)
        self._http = httpx.Client(**self._server.options(timeout_s, connect_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def call(self, method: str, path: str, values: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send values, as query of a GET and as JSON of any other method; return MLflow's answer."""
        try:
            answer = self._http.request(method, path, **sent(method, values))
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
            page = next_page(values, answer)
        return found


class ClientOptions(TypedDict, total=False):
    """Keyword arguments that both httpx clients have."""

    base_url: str
    auth: tuple[str, str] | None
    headers: dict[str, str]
    timeout: httpx.Timeout
    verify: ssl.SSLContext | bool
    trust_env: bool


@dataclass(frozen=True)
class MlflowServer:
    """An MLflow server: the options for connecting to it, and the errors that its answers stand for."""

    tracking_uri: str
    account: Account

    def options(self, timeout_s: float, connect_s: float | None = None) -> ClientOptions:
        """Return the options for a client of the server; the times are those of `MlflowRest`."""
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
        """Return the error for a request that got no answer."""
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


def sent(method: str, values: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options of a request with values: query of a GET, JSON of any other method."""
    return {} if values is None else {"params" if method == "GET" else "json": values}


def next_page(values: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the values for the next page of a search; None after the last one."""
    token = answer.get("next_page_token")
    return {**values, "page_token": token} if token else None
