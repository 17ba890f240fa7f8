"""Route that checks a request for resources against the cluster, before a job is uploaded and submitted."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends

from mlplatform.api.cluster import Capacity, CapacityRequest
from mlplatform.errors import UnreachableError
from mlplatform.gateway.control.reconciler import Reconciler
from mlplatform.gateway.http.access import User
from mlplatform.gateway.http.description import errors
from mlplatform.gateway.http.routing import JsonBody, router
from mlplatform.gateway.upstream.ray import RayHead
from mlplatform.scheduling.capacity import Shortage
from mlplatform.scheduling.listings import users_of
from mlplatform.scheduling.resources import Request, Resources, WorkerGroup

_BODY = JsonBody(CapacityRequest, 64 << 10, "request fewer kinds of resources")

_USERS_SECONDS = 3.0
"""The names of the jobs that hold resources are left out when the head takes longer to list them."""


def of_capacity(reconciler: Reconciler, head: RayHead) -> APIRouter:
    """Return the route `POST /platform/capacity`."""
    routes = router()

    @routes.post("/platform/capacity", response_model=Capacity, responses=errors(422))
    async def post(_: User, sent: Annotated[CapacityRequest, Depends(_BODY)]) -> dict[str, Shortage | None]:
        """Check whether the nodes alive or recently seen can hold a job; nothing is stored."""
        asked = _request(sent)
        free = await reconciler.free_capacity()
        if free is None:
            raise UnreachableError("The gateway has not seen a node of Ray yet; try again when Ray has started.")
        shortage = free.check(asked)
        return {"shortage": shortage and await _with_users(shortage, asked, reconciler, head)}

    return routes


def _request(sent: CapacityRequest) -> Request:
    workers = WorkerGroup(**sent.workers.model_dump()) if sent.workers else None
    return Request(Resources(**sent.entrypoint.model_dump()), workers, sent.labels)


async def _with_users(shortage: Shortage, asked: Request, reconciler: Reconciler, head: RayHead) -> Shortage:
    """Add the jobs that hold some of the requested resources, if the head answers."""
    kinds = {*asked.entrypoint.amounts(), *(asked.workers.amounts() if asked.workers else {})}
    with suppress(UnreachableError, TimeoutError):
        async with asyncio.timeout(_USERS_SECONDS):
            cluster, actors = await asyncio.gather(reconciler.look(), head.living_actors())
        return replace(shortage, users=users_of(kinds, actors, cluster.jobs.values()))
    return shortage
