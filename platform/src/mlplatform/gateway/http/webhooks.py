"""Routes for the address to which a person has messages sent."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from mlplatform.api import people as api
from mlplatform.errors import SettingsError
from mlplatform.gateway.errors import RequestError
from mlplatform.gateway.http.access import OwnRight
from mlplatform.gateway.http.auth import actor_of
from mlplatform.gateway.http.description import errors
from mlplatform.gateway.http.routing import JsonBody, router
from mlplatform.gateway.people.webhooks import Webhooks
from mlplatform.gateway.upstream.messages import MessageSender

_PATH = "/platform/webhook"

_Owner = Annotated[str, Depends(OwnRight("Messages"))]

_Body = JsonBody(api.NewMessageAddress, 4 << 10, "send the address alone")


def of_webhooks(webhooks: Webhooks, sender: MessageSender) -> APIRouter:
    """Return the routes of `/platform/webhook`."""
    routes = router()

    @routes.get(_PATH, responses=errors(400))
    async def get(owner: _Owner) -> api.MessageAddress:
        """The address to which the person has messages sent when a job ends, is lost, or leaves for another one."""
        return api.MessageAddress(url=await webhooks.of(owner))

    @routes.put(_PATH)
    async def put(
        request: Request, owner: _Owner, new: Annotated[api.NewMessageAddress, Depends(_Body)]
    ) -> api.MessageAddress:
        """Set the address, to which a first message is sent, or remove it with null.

        Webhooks get JSON with `text`, and with `job`, `person`, `event` (ended, lost or left), `status` and `time`,
        mails the text. A message is sent up to eight times within 25 minutes until the receiver accepts it.
        """
        if new.url is not None:
            try:
                await sender.send(
                    new.url, {"text": f"Messages about the jobs of {owner} are sent here.", "event": "set"}
                )
            except SettingsError as error:
                raise RequestError(str(error)) from error
        await webhooks.set(owner, new.url, actor_of(request.scope))
        return api.MessageAddress(url=new.url)

    return routes
