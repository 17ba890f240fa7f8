"""Route for the address to which a person has messages sent."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mlplatform.errors import SettingsError
from mlplatform.gateway.errors import RequestError
from mlplatform.gateway.http import request_body
from mlplatform.gateway.http.auth import actor_of, person_of
from mlplatform.gateway.people.store import People
from mlplatform.gateway.upstream.messages import MessageSender

_BODY_BYTES = 4 << 10

_PATH = "/platform/webhook"


class _Address(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    url: Annotated[str, Field(max_length=2000)] | None


def routes(people: People, sender: MessageSender) -> list[Route]:
    """Return the routes of `/platform/webhook`; errors are plain text."""

    async def get(request: Request) -> Response:
        """Respond with the person's own address."""
        return JSONResponse({"url": await people.webhook(_person(request))})

    async def put(request: Request) -> Response:
        """Set or, with null, remove the person's own address; a first message is sent to it."""
        person = _person(request)
        url = (await request_body.parsed(request.receive, _Address, _BODY_BYTES, "send the address alone")).url
        if url is not None:
            try:
                await sender.send(url, {"text": f"Messages about the jobs of {person} are sent here.", "event": "set"})
            except SettingsError as error:
                raise RequestError(str(error)) from error
        await people.set_webhook(person, url, actor_of(request.scope))
        return JSONResponse({"url": url})

    return [Route(_PATH, get, methods=["GET"]), Route(_PATH, put, methods=["PUT"])]


def _person(request: Request) -> str:
    return person_of(request.scope, "Messages")
