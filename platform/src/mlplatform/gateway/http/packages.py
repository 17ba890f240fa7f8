"""Upload and download of job packages over HTTP."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import anyio
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from mlplatform.errors import PlatformError
from mlplatform.gateway.http.request_body import SILENT_SECONDS, ClientGoneError, incoming
from mlplatform.gateway.jobs.packages import PackageError, Packages, check_name, missing_package

PATH = "/api/packages/{protocol}/{package_name:path}"
"""With slashes in the name, so that no upload slips past to the head."""

_log = logging.getLogger(__name__)

_LINGER_SECONDS = 10.0


def routes(packages: Packages, silent_seconds: float = SILENT_SECONDS) -> list[Route]:
    """Ray's paths for packages: GET says whether there is one, PUT brings one and may stand still for so long."""

    async def get(request: Request) -> Response:
        try:
            name = _named(request)
            if not await packages.exists(name):
                raise missing_package(name)
        except (PlatformError, OSError) as error:
            return _explained(error)
        return Response()

    async def put(request: Request) -> Response:
        body = incoming(request.receive, silent_seconds)
        try:
            name = _named(request)
            packages.check_size(name, int(request.headers.get("content-length", 0)))
            await packages.put(name, body)
        except ClientGoneError:
            return Response(status_code=400)  # to nobody
        except TimeoutError:
            text = f"The upload stood still for {silent_seconds:g} s; submit the job again."
            return PlainTextResponse(text, 408, {"Connection": "close"})
        except (PlatformError, OSError) as error:
            return _Early(_explained(error), body)
        return Response()

    return [Route(PATH, get, methods=["GET"]), Route(PATH, put, methods=["PUT"])]


class _Early(Response):
    """An answer that may come before the whole body did.

    What still comes is dropped for a while: a client that sends first and reads later would find its connection reset
    and never see the answer.
    """

    def __init__(self, answer: Response, body: AsyncIterator[bytes]) -> None:
        super().__init__(answer.body, answer.status_code)
        self.raw_headers = answer.raw_headers
        self._rest = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        try:
            with anyio.move_on_after(_LINGER_SECONDS):
                async for _ in self._rest:
                    pass
        except (ClientGoneError, TimeoutError):
            return
        await send({"type": "http.response.body", "body": b""})


def _explained(error: Exception) -> Response:
    if isinstance(error, PackageError):
        return PlainTextResponse(str(error), error.status)
    _log.warning("A package could not be served: %s", error)
    text = str(error) if isinstance(error, PlatformError) else f"The gateway cannot keep packages now ({error})."
    return PlainTextResponse(text, 503, {"Retry-After": "5"})


def _named(request: Request) -> str:
    protocol, name = request.path_params["protocol"], request.path_params["package_name"]
    if protocol != "gcs":
        raise PackageError(f"Packages of {protocol}:// are not kept here; upload to gcs, as Ray's clients do.", 404)
    check_name(name)
    return str(name)
