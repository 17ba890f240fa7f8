"""Routes for job packages: Ray's paths to check for one and to upload one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated

import anyio
from fastapi import APIRouter, Path, Request, Response
from starlette.types import Receive, Scope, Send

from mlplatform.errors import PlatformError
from mlplatform_gateway.audit.store import Actor, AuditLog
from mlplatform_gateway.errors import ForbiddenError, NoSuchPackageError, RequestError
from mlplatform_gateway.http.access import USERS
from mlplatform_gateway.http.auth import actor_of, principal_of
from mlplatform_gateway.http.description import errors, raw_body
from mlplatform_gateway.http.errors import error_response
from mlplatform_gateway.http.request_body import SILENT_SECONDS, incoming
from mlplatform_gateway.monitoring.disks import Disks
from mlplatform_gateway.packages.store import Packages, check_name, is_named_by_content, missing_package
from mlplatform_gateway.people.rights import Principal

PATH = "/api/packages/{protocol}/{package_name:path}"
"""Path of a package; it accepts slashes in the name, so that no upload bypasses the gateway."""

_Protocol = Annotated[str, Path(json_schema_extra={"enum": ["gcs"]})]
_Name = Annotated[
    str, Path(json_schema_extra={"pattern": r"^[A-Za-z0-9_][A-Za-z0-9_.+-]{0,240}\.(zip|tar\.gz|tgz|tar\.xz|whl)$"})
]

_LINGER_SECONDS = 10.0


def routes(
    packages: Packages,
    silent_seconds: float = SILENT_SECONDS,
    audit: AuditLog | None = None,
    disks: Disks | None = None,
) -> APIRouter:
    """Return the routes: GET looks for a package, PUT uploads one.

    Clients skip the upload of a package that GET finds. It does not find a wheel, whose name says nothing about its
    content: a changed wheel of the same version is uploaded, and refused.

    Args:
        silent_seconds: idle timeout of an upload.
        disks: reject uploads while one of them is full; None if there are none.
        audit: where the first upload of each package is recorded, before it is stored; None to record none.
    """

    # Everybody may know whether a package exists.
    router = APIRouter(dependencies=[USERS])

    @router.get(PATH, response_class=Response, responses=errors(404))
    async def get(protocol: _Protocol, package_name: _Name) -> Response:
        """Look for a package by its name, which Ray's client computes from the content; a wheel is never found."""
        try:
            name = _checked(protocol, package_name)
            # The look also keeps the package until the job is submitted.
            if await packages.exists(name) and is_named_by_content(name):
                return Response()
            raise missing_package(name)
        except (PlatformError, OSError) as error:
            return error_response(error)

    @router.put(PATH, response_class=Response, responses=errors(404, 409, 507), openapi_extra=raw_body("The package."))
    async def put(request: Request, protocol: _Protocol, package_name: _Name) -> Response:
        """Upload a package; an existing one stays as it is."""
        body = incoming(request.receive, silent_seconds)
        try:
            name = _checked(protocol, package_name)
            _check_submits(principal_of(request.scope))
            if disks is not None:
                await disks.check()
            packages.check_size(name, int(request.headers.get("content-length", 0)))
            record = None if audit is None else partial(_record, audit, actor_of(request.scope), name)
            await packages.put(name, body, record)
        except RequestError as error:
            return error_response(error)
        except (PlatformError, OSError) as error:
            return _EarlyResponse(error_response(error), body)
        return Response()

    return router


async def _record(audit: AuditLog, actor: Actor, name: str, size: int, sha256: str) -> None:
    await audit.add(actor, "upload", f"package {name}", after={"bytes": size, "sha256": sha256})


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


def _check_submits(principal: Principal) -> None:
    """Reject packages of people who submit no jobs: one of theirs could only be for a job of somebody else."""
    if principal.person and not (principal.teams or principal.administrator or principal.attempt):
        raise ForbiddenError(f"{principal.person} is in no team; ask an administrator to add you to one.")


def _checked(protocol: str, name: str) -> str:
    if protocol != "gcs":
        raise NoSuchPackageError(f"Packages of {protocol}:// are not accepted here; upload to gcs://, as Ray does.")
    check_name(name)
    return name
