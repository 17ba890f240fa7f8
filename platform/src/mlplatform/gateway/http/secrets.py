"""Routes for a person's secrets, whose values only attempts of that person's jobs read (`attempts.py`)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request

from mlplatform.api import people as api
from mlplatform.gateway.http import request_body
from mlplatform.gateway.http.access import OwnRight
from mlplatform.gateway.http.auth import actor_of
from mlplatform.gateway.http.description import errors, raw_body
from mlplatform.gateway.http.routing import router
from mlplatform.gateway.people.secrets import MOST_BYTES, Secrets

_PATH = "/platform/secrets"

_Owner = Annotated[str, Depends(OwnRight("Secrets"))]

_Name = Annotated[str, Path(json_schema_extra={"pattern": "^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$"})]

_SMALLER = f"a secret has {MOST_BYTES >> 10} KiB at most, so store larger files in a bucket"


def of_secrets(secrets: Secrets) -> APIRouter:
    """Return the routes below `/platform/secrets`."""
    routes = router()

    @routes.get(_PATH, responses=errors(400))
    async def list_secrets(owner: _Owner) -> api.Secrets:
        """The person's secrets, without their values, which nobody reads here."""
        return api.Secrets(secrets=await secrets.listed(owner))

    @routes.put(f"{_PATH}/{{name}}", openapi_extra=raw_body("The value, from 1 byte to 64 KiB."))
    async def put(request: Request, owner: _Owner, name: _Name) -> dict[str, str]:
        """Set a secret of the person, who may have 100; jobs that start from now on get it as a file."""
        body = await request_body.whole(request.receive, MOST_BYTES, _SMALLER)
        await secrets.put(owner, name, body, actor_of(request.scope))
        return {"set": name}

    @routes.delete(f"{_PATH}/{{name}}", responses=errors(404))
    async def remove(request: Request, owner: _Owner, name: _Name) -> dict[str, str]:
        """Remove a secret of the person; attempts that are running keep it."""
        await secrets.remove(owner, name, actor_of(request.scope))
        return {"removed": name}

    return routes
