"""Routes for a person's secrets, whose values only attempts of that person's jobs read (`jobs/attempts_api.py`)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request

from mlplatform.api import people as api
from mlplatform_gateway.http import request_body
from mlplatform_gateway.http.access import PEOPLE
from mlplatform_gateway.http.auth import actor_of, person_of
from mlplatform_gateway.http.description import errors, raw_body
from mlplatform_gateway.people.secrets import MOST_BYTES, Secrets

_PATH = "/platform/secrets"

_Name = Annotated[str, Path(json_schema_extra={"pattern": "^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$"})]

_SMALLER = f"a secret has {MOST_BYTES >> 10} KiB at most, so store larger files in a bucket"


def routes(secrets: Secrets) -> APIRouter:
    """Return the routes below `/platform/secrets`."""
    router = APIRouter(dependencies=[PEOPLE])

    @router.get(_PATH, responses=errors(400))
    async def list_all(request: Request) -> api.Secrets:
        """The person's secrets, without their values, which nobody reads here."""
        return api.Secrets(secrets=await secrets.listed(_person(request)))

    @router.put(f"{_PATH}/{{name}}", openapi_extra=raw_body("The value, from 1 byte to 64 KiB."))
    async def put(request: Request, name: _Name) -> dict[str, str]:
        """Set a secret of the person, who may have 100; jobs that start from now on get it as a file."""
        person = _person(request)
        body = await request_body.whole(request.receive, MOST_BYTES, _SMALLER)
        await secrets.put(person, name, body, actor_of(request.scope))
        return {"set": name}

    @router.delete(f"{_PATH}/{{name}}", responses=errors(404))
    async def remove(request: Request, name: _Name) -> dict[str, str]:
        """Remove a secret of the person; attempts that are running keep it."""
        await secrets.remove(_person(request), name, actor_of(request.scope))
        return {"removed": name}

    return router


def _person(request: Request) -> str:
    return person_of(request.scope, "Secrets")
