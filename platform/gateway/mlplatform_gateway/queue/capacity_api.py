"""Route that checks a request for resources against the cluster, before a job is uploaded and submitted."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends

from mlplatform.api.cluster import Capacity, CapacityRequest
from mlplatform.capacity.resources import Request, Resources, Shortage, WorkerGroup
from mlplatform.errors import UnreachableError
from mlplatform_gateway.http.access import USERS
from mlplatform_gateway.http.description import errors
from mlplatform_gateway.http.request_body import JsonBody
from mlplatform_gateway.jobs.admission import Admission
from mlplatform_gateway.ray.cluster import LISTING_SECONDS, Cluster
from mlplatform_gateway.ray.head import RayHead
from mlplatform_gateway.ray.listings import users_of

_BODY = Depends(JsonBody(CapacityRequest, 64 << 10, "request fewer kinds of resources"))


def routes(admission: Admission, cluster: Cluster, head: RayHead) -> APIRouter:
    """Return the route `POST /platform/capacity`."""
    router = APIRouter()

    @router.post("/platform/capacity", dependencies=[USERS], responses=errors(422))
    async def post(sent: Annotated[CapacityRequest, _BODY]) -> Capacity:
        """Check whether the nodes alive or recently seen can hold a job; nothing is stored."""
        workers = WorkerGroup(**sent.workers.model_dump()) if sent.workers else None
        asked = Request(Resources(**sent.entrypoint.model_dump()), workers, sent.labels)
        shortage = await admission.shortage(asked)
        if shortage is not None:
            shortage = await _with_users(shortage, asked, cluster, head)
        return Capacity.model_validate({"shortage": shortage})

    return router


async def _with_users(shortage: Shortage, asked: Request, cluster: Cluster, head: RayHead) -> Shortage:
    """Add the jobs that hold some of the requested resources, if the head answers."""
    kinds = {*asked.entrypoint.amounts(), *(asked.workers.amounts() if asked.workers else {})}
    with suppress(UnreachableError, TimeoutError):
        async with asyncio.timeout(LISTING_SECONDS):
            listed, actors = await asyncio.gather(cluster.look(), head.living_actors())
        return replace(shortage, users=users_of(kinds, actors, listed.jobs.values()))
    return shortage
