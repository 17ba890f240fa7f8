"""Route with the S3 key of the role `people`, for the `credential_process` of S3 clients."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mlplatform.gateway.control.people_key import FileKey, PeopleKey
from mlplatform.gateway.errors import RequestError

PATH = "/platform/storage-credentials"

_REGION = "us-east-1"
"""Region that requests to the object store are signed for, as for all services of the stack."""


def routes(key: FileKey | PeopleKey | None, external: str, port: int) -> list[Route]:
    """Return the routes `GET` and `POST /platform/storage-credentials`.

    Args:
        key: the key; None without an object store.
        external: address of an S3 server of others; empty for the stack's own.
        port: port of the stack's own on this host.
    """

    async def get(request: Request) -> Response:
        """Respond with the address of the object store; null without one."""
        # By the name by which the client reaches this host, be it by way of a forwarded port.
        own = f"{request.url.scheme}://{request.url.hostname}:{port}"
        place = None if key is None else {"endpoint_url": external or own, "region": _REGION}
        return JSONResponse({"s3": place})

    async def post(_: Request) -> Response:
        """Respond with the key; not to a GET, which sessions of browsers may send."""
        if key is None:
            raise RequestError("This platform stores in folders, so that there is no S3 key.")
        name, secret = await key.current()
        answer = {"access_key": name, "secret_key": secret}
        return JSONResponse(answer, headers={"Cache-Control": "no-store"})

    return [Route(PATH, get, methods=["GET"]), Route(PATH, post, methods=["POST"])]
