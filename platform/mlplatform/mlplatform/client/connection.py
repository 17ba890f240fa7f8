"""HTTP connection to the gateway: authentication, retries while it is unavailable, and the package's errors."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NoReturn, Self, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from mlplatform.api.jobs import Job
from mlplatform.client.certificates import verification
from mlplatform.contract import GATEWAY_HEADER
from mlplatform.errors import AccessError, CapacityError, JobError, SettingsError, StorageError, UnreachableError
from mlplatform.secrets.credentials import TokenFile
from mlplatform.settings import proxies
from mlplatform.settings.job import HTTP, Settings, settings

POLL_SECONDS = 1.0

PATIENCE_SECONDS = 180.0
"""Longest time that the gateway may be unavailable while a job is followed; a restarted Ray took 18 to 81 s."""

# Ray's dashboard answers within milliseconds, but on a busy machine its first answers took more than 10 s.
_TIMEOUT = httpx.Timeout(60.0, connect=5.0)

Answer = TypeVar("Answer")
Model = TypeVar("Model", bound=BaseModel)


class UnavailableError(UnreachableError):
    """A service that the gateway depends on does not answer, although the gateway does."""


class Connection:
    """HTTP client of the gateway at `settings.ray_address`; a context manager that closes its connections.

    Every method raises:
        UnreachableError: nothing answers at the address.
        AccessError: the token is missing or rejected.
    """

    def __init__(self, config: Settings | None = None, authenticates: bool = True) -> None:
        """Set up the client; it connects with the first request.

        Args:
            config: address of the gateway, and the file with the token; None for the settings of this process.
            authenticates: send the token.

        Raises:
            SettingsError: the file of the token cannot be read, or the address is not one of HTTP.
        """
        config = config or settings()
        if not config.ray_address.startswith(HTTP):
            raise SettingsError(
                f"RAY_ADDRESS={config.ray_address!r} does not begin with http:// or https://; set it to the "
                "gateway's address, such as http://127.0.0.1:8265."
            )
        self._settings = config
        self.http = httpx.Client(
            base_url=config.ray_address,
            auth=_signature(config) if authenticates else None,
            timeout=_TIMEOUT,
            verify=verification(config.ray_address),
            trust_env=proxies.uses_environment(config.ray_address),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def call(
        self, method: str, path: str, *, job_id: str | None = None, named: bool = False, **options: Any
    ) -> httpx.Response:
        """Send a request and return its successful answer.

        Args:
            job_id: the job that the request is about, named in the error if it does not exist.
            named: the request names something else that may not exist, which the gateway's answer then says.
            options: keyword arguments of `httpx.Client.request`.

        Raises:
            JobError: there is no such job, or the request is rejected.
            CapacityError: the job can never run.
        """
        response = self._answer(method, path, options)
        if not response.is_success:
            self._raise(response, job_id, named)
        return response

    def read(self, model: type[Model], method: str, path: str, **options: Any) -> Model:
        """Send a request as `call` does, and return its answer as a model of the interface.

        Raises:
            JobError: as `call`; or a gateway of another version answers with other fields.
        """
        response = self.call(method, path, **options)
        try:
            return model.model_validate(response.json())
        except ValueError as error:
            field = ".".join(map(str, error.errors()[0]["loc"])) if isinstance(error, ValidationError) else ""
            raise JobError(
                f"The answer of the gateway at {self._settings.ray_address} to {path} has another "
                f"{field or 'body'} than this client expects; the gateway has version "
                f"{response.headers.get(GATEWAY_HEADER, 'unknown')}: upgrade the older of the two."
            ) from error

    def _answer(self, method: str, path: str, options: dict[str, Any]) -> httpx.Response:
        """Send a request and return its answer, whatever its status, apart from 401 and 403."""
        address = f"Ray at {self._settings.ray_address} (RAY_ADDRESS)"
        try:
            response = self.http.request(method, path, **options)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            reason = str(error) or type(error).__name__
            hint = proxies.hint(self._settings.ray_address)
            message = f"{address} does not answer ({reason}); start it or correct the address.{hint}"
            raise UnreachableError(message) from error
        if response.status_code == 403 and GATEWAY_HEADER in response.headers and not _is_invalid(response):
            raise AccessError(response.text.strip())
        if response.status_code in (401, 403):
            used = self._settings.token_file or "no token"
            raise AccessError(
                f"{address} rejects the token ({response.status_code}, used: {used}); "
                f"set RAY_AUTH_TOKEN_PATH to the file with its token.{proxies.hint(self._settings.ray_address)}"
            )
        return response

    def details(self, job_id: str) -> Job:
        """Return Ray's details of a job.

        Raises:
            JobError: there is no such job.
        """
        return self.read(Job, "GET", f"/api/jobs/{job_id}", job_id=job_id)

    def details_patiently(self, job_id: str, known: bool = True) -> Job:
        """Return a job's details; retry while the gateway is unavailable, as `patiently` does."""
        return self.patiently(lambda: self.details(job_id), known)

    def patiently(self, ask: Callable[[], Answer], known: bool = True) -> Answer:
        """Return what a request returns; retry while the gateway is unavailable, for three minutes at most.

        Args:
            ask: sends the request.
            known: what it is about existed before, so a missing answer or object is treated as temporary; otherwise,
                retry only while the gateway itself reports that it is unavailable.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return ask()
            except (UnreachableError, JobError) as error:
                if time.monotonic() > deadline or not (known or isinstance(error, UnavailableError)):
                    raise
            time.sleep(POLL_SECONDS)

    def _raise(self, response: httpx.Response, job_id: str | None, named: bool) -> NoReturn:
        address = self._settings.ray_address
        last_line = (response.text.strip().splitlines() or [""])[-1]
        if response.status_code == 422:
            raise CapacityError(last_line)
        if response.status_code == 507:
            raise StorageError(last_line)
        if response.status_code == 503:
            raise UnavailableError(f"Ray at {address} cannot answer now: {last_line}")
        if response.status_code == 404 and named and GATEWAY_HEADER in response.headers:
            raise JobError(last_line)
        if response.status_code == 404 and response.url.path.startswith("/platform/"):
            self._raise_missing_path(response, job_id)
        if response.status_code == 404 and job_id:
            raise JobError(f"There is no job {job_id!r} at {address}; `mlplatform jobs` lists them.")
        raise JobError(f"Ray at {address} rejected the request ({response.status_code}): {last_line}")

    def _raise_missing_path(self, response: httpx.Response, job_id: str | None) -> None:
        """Raise the error for a path that the server lacks; return if it is a job that is missing instead."""
        address, version = self._settings.ray_address, response.headers.get(GATEWAY_HEADER)
        if version is None:
            raise JobError(f"{address} is not the platform's gateway; set RAY_ADDRESS to the gateway's address.")
        if job_id is None:
            raise JobError(
                f"The gateway at {address} has version {version} and lacks {response.url.path}; "
                "upgrade it with `make up`."
            )


def _is_invalid(response: httpx.Response) -> bool:
    """Return whether the shared token is wrong; otherwise the text says what is wrong, and what to do."""
    return response.text == "Forbidden: Invalid authentication token"


def _signature(config: Settings) -> Callable[[httpx.Request], httpx.Request] | None:
    """Return the function that adds the token to a request; None without a token.

    Raises:
        SettingsError: the token's file cannot be read, or is empty.
    """
    if own := config.own_token:

        def sign(request: httpx.Request) -> httpx.Request:
            request.headers["Authorization"] = f"Bearer {own}"
            return request

        return sign
    if config.token_file is None:
        return None
    token = TokenFile(config.token_file)
    token.read()
    return token.sign
