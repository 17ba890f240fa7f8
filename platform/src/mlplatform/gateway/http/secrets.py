"""Routes for a person's secrets, whose values only attempts of that person's jobs read (`attempts.py`)."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mlplatform.gateway.http import request_body
from mlplatform.gateway.http.auth import actor_of, person_of
from mlplatform.gateway.people.secrets import MOST_BYTES, Secrets

_PATH = "/platform/secrets"


def routes(secrets: Secrets) -> list[Route]:
    """Return the routes; errors are plain text."""

    async def list_all(request: Request) -> Response:
        """Respond with the person's own secrets, without their values."""
        found = [
            {
                "name": secret.name,
                "bytes": secret.size,
                "changed": secret.changed.isoformat(),
                "readable": secret.readable,
            }
            for secret in await secrets.listed(_person(request))
        ]
        return JSONResponse({"secrets": found})

    async def put(request: Request) -> Response:
        """Set a secret to the bytes of the body."""
        person, name = _person(request), request.path_params["name"]
        body = await request_body.whole(
            request.receive,
            MOST_BYTES,
            f"a secret has {MOST_BYTES >> 10} KiB at most, so store larger files in a bucket",
        )
        await secrets.put(person, name, body, actor_of(request.scope))
        return JSONResponse({"set": name})

    async def remove(request: Request) -> Response:
        """Remove a secret; attempts that are running keep it."""
        person, name = _person(request), request.path_params["name"]
        await secrets.remove(person, name, actor_of(request.scope))
        return JSONResponse({"removed": name})

    return [
        Route(_PATH, list_all, methods=["GET"]),
        Route(f"{_PATH}/{{name}}", put, methods=["PUT"]),
        Route(f"{_PATH}/{{name}}", remove, methods=["DELETE"]),
    ]


def _person(request: Request) -> str:
    return person_of(request.scope, "Secrets")
