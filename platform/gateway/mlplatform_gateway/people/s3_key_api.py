"""Routes with the S3 key of the role `people`, for the `credential_process` of S3 clients."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from mlplatform.api.storage import Key, Place, Store
from mlplatform_gateway.errors import RequestError
from mlplatform_gateway.http.access import PEOPLE
from mlplatform_gateway.http.description import errors
from mlplatform_gateway.people.s3_key import FileKey, PeopleKey

PATH = "/platform/storage-credentials"

_REGION = "us-east-1"
"""Region that requests to the object store are signed for, as for all services of the stack."""


def routes(key: FileKey | PeopleKey | None, external: str, port: int) -> APIRouter:
    """Return the routes `GET` and `POST /platform/storage-credentials`.

    Args:
        key: the key; None without an object store.
        external: address of an S3 server of others; empty for the stack's own.
        port: port of the stack's own on this host.
    """

    router = APIRouter(dependencies=[PEOPLE])

    @router.get(PATH)
    async def get(request: Request) -> Store:
        """The address of the object store; null if the platform stores in folders."""
        # By the name by which the client reaches this host, be it by way of a forwarded port.
        own = f"{request.url.scheme}://{request.url.hostname}:{port}"
        return Store(s3=None if key is None else Place(endpoint_url=external or own, region=_REGION))

    # Not to a GET, which sessions of browsers may send.
    @router.post(PATH, responses=errors(400, 500))
    async def post(response: Response) -> Key:
        """The S3 key of people, which changes when a person is removed; the gateway does not store it."""
        if key is None:
            raise RequestError("This platform stores in folders, so that there is no S3 key.")
        name, secret = await key.current()
        response.headers["Cache-Control"] = "no-store"
        return Key(access_key=name, secret_key=secret)

    return router
