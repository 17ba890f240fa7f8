"""Routes for the address to which a person has messages sent."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from mlplatform.api.people import MessageAddress, NewMessageAddress
from mlplatform.errors import SettingsError
from mlplatform_gateway.errors import RequestError
from mlplatform_gateway.http.access import PEOPLE
from mlplatform_gateway.http.auth import actor_of, person_of
from mlplatform_gateway.http.description import errors
from mlplatform_gateway.http.request_body import JsonBody
from mlplatform_gateway.notify.sender import MessageSender
from mlplatform_gateway.people.store import People

_PATH = "/platform/webhook"

_BODY = Depends(JsonBody(NewMessageAddress, 4 << 10, "send the address alone"))


def routes(people: People, sender: MessageSender) -> APIRouter:
    """Return the routes of `/platform/webhook`."""
    router = APIRouter(dependencies=[PEOPLE])

    @router.get(_PATH, responses=errors(400))
    async def get(request: Request) -> MessageAddress:
        """The address to which the person has messages sent when a job ends, is lost or leaves, or a budget is used."""
        return MessageAddress(url=await people.webhook(person_of(request.scope, "Messages")))

    @router.put(_PATH)
    async def put(request: Request, new: Annotated[NewMessageAddress, _BODY]) -> MessageAddress:
        """Set the address, to which a first message is sent, or remove it with null.

        Webhooks get JSON with `text`, `job`, `person`, `event` (ended, lost, left or budget), `status` and `time`,
        mails the text. A message is sent up to eight times within 25 minutes until the receiver accepts it.
        """
        person = person_of(request.scope, "Messages")
        if new.url is not None:
            first = {"text": f"Messages about the jobs of {person} are sent here.", "event": "set"}
            try:
                await sender.send(new.url, first)
            except SettingsError as error:
                raise RequestError(str(error)) from error
        await people.set_webhook(person, new.url, actor_of(request.scope))
        return MessageAddress(url=new.url)

    return router
