"""Routes for job packages: Ray's paths to check for one and to upload one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated

import anyio
from fastapi import APIRouter, Depends, Path, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mlplatform.errors import PlatformError
from mlplatform.gateway.audit.log import AuditLog
from mlplatform.gateway.control.disks import Disks
from mlplatform.gateway.errors import NoSuchPackageError, RequestError
from mlplatform.gateway.http.access import USERS
from mlplatform.gateway.http.auth import actor_of
from mlplatform.gateway.http.description import errors, raw_body
from mlplatform.gateway.http.errors import error_response
from mlplatform.gateway.http.request_body import SILENT_SECONDS, incoming
from mlplatform.gateway.http.routing import router
from mlplatform.gateway.jobs.packages import Packages, check_name, missing_package

PATH = "/api/packages/{protocol}/{package_name:path}"
"""Path of a package; it accepts slashes in the name, so that no upload bypasses the gateway."""

# A package is found by nobody and read by nodes only; its name is a digest of its content.
_USERS = [Depends(USERS)]

_Protocol = Annotated[str, Path(json_schema_extra={"enum": ["gcs"]})]

_Name = Annotated[
    str, Path(json_schema_extra={"pattern": r"^[A-Za-z0-9_][A-Za-z0-9_.+-]{0,240}\.(zip|tar\.gz|tgz|tar\.xz|whl)$"})
]

_LINGER_SECONDS = 10.0


def of_packages(
    packages: Packages,
    silent_seconds: float = SILENT_SECONDS,
    audit: AuditLog | None = None,
    disks: Disks | None = None,
) -> APIRouter:
    """Return the routes: GET checks a name and never finds a package, PUT uploads one.

    Clients skip the upload of a package that GET finds. A name says nothing about content, so a job would run what
    somebody else has uploaded under the name; instead every client uploads, and PUT compares.

    Args:
        packages: the stored packages.
        silent_seconds: idle timeout of an upload.
        disks: reject uploads while one of them is full; None if there are none.
        audit: where the first upload of each package is recorded, before it is stored; None to record none.
    """
    routes = router()

    @routes.get(PATH, dependencies=_USERS, response_class=Response, responses=errors(404))
    async def get(protocol: _Protocol, package_name: _Name) -> Response:
        """Check the name of a package: none is found, so that clients upload each one, and its content is compared."""
        try:
            name = _checked(protocol, package_name)
            await packages.exists(name)  # which also keeps it until the job is submitted
            raise missing_package(name)
        except (PlatformError, OSError) as error:
            return error_response(error)

    @routes.put(
        PATH,
        dependencies=_USERS,
        response_class=Response,
        responses=errors(404, 409, 507),
        openapi_extra=raw_body("The package."),
    )
    async def put(request: Request, protocol: _Protocol, package_name: _Name) -> Response:
        """Upload a package; an existing one stays as it is, and must have the same content."""
        body = incoming(request.receive, silent_seconds)
        try:
            name = _checked(protocol, package_name)
            if disks is not None:
                await disks.check()
            packages.check_size(name, int(request.headers.get("content-length", 0)))
            await packages.put(name, body, _recorder(audit, request, name))
        except RequestError as error:
            return error_response(error)
        except (PlatformError, OSError) as error:
            return _EarlyResponse(error_response(error), body)
        return Response()

    return routes


def _recorder(audit: AuditLog | None, request: Request, name: str) -> Callable[[int, str], Awaitable[None]] | None:
    """Return the function that records an upload, given size and digest; None without an audit log."""
    if audit is None:
        return None
    log, actor = audit, actor_of(request.scope)

    async def record(size: int, digest: str) -> None:
        await log.add(actor, "upload", f"package {name}", after={"bytes": size, "sha256": digest})

    return record


class _EarlyResponse(Response):
    """A response that may precede the end of the request's body.

    The rest of the body is read and dropped for up to 10 s: a client that sends first and reads later would otherwise
    find its connection reset and never see the response.
    """

    def __init__(self, response: Response, body: AsyncIterator[bytes]) -> None:
        super().__init__(response.body, response.status_code)
        self.raw_headers = response.raw_headers
        self._rest = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        try:
            with anyio.move_on_after(_LINGER_SECONDS):
                async for _ in self._rest:
                    pass
        except RequestError:
            return
        await send({"type": "http.response.body", "body": b""})


def _checked(protocol: str, name: str) -> str:
    if protocol != "gcs":
        raise NoSuchPackageError(f"Packages of {protocol}:// are not accepted here; upload to gcs://, as Ray does.")
    check_name(name)
    return name
