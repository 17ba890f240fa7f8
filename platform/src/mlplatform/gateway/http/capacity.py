"""Route that checks a request for resources against the cluster, before a job is uploaded and submitted."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mlplatform.errors import UnreachableError
from mlplatform.gateway.control.admission import Admission
from mlplatform.gateway.control.reconciler import LISTING_SECONDS, Reconciler
from mlplatform.gateway.http import request_body
from mlplatform.gateway.upstream.listings import users_of
from mlplatform.gateway.upstream.ray import RayHead
from mlplatform.scheduling.capacity import Shortage
from mlplatform.scheduling.resources import Request, Resources, WorkerGroup

_BODY_BYTES = 64 << 10

_MAX_WORKERS = 1_000_000


class _Resources(BaseModel):
    """Fields of `Resources`; negative amounts are left to the check, which names the shape that fits."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    cpus: float = 0
    gpus: float = 0
    custom: dict[Annotated[str, Field(min_length=1)], float] = {}


class _WorkerGroup(_Resources):
    """Fields of `WorkerGroup`."""

    cpus: float = 1
    count: int = Field(ge=0, le=_MAX_WORKERS)


class _Body(BaseModel):
    """Fields of `scheduling.resources.Request`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    entrypoint: _Resources = _Resources()
    workers: _WorkerGroup | None = None
    labels: dict[str, str] = {}

    def request(self) -> Request:
        workers = WorkerGroup(**self.workers.model_dump()) if self.workers else None
        return Request(Resources(**self.entrypoint.model_dump()), workers, self.labels)


def routes(admission: Admission, reconciler: Reconciler, head: RayHead) -> list[Route]:
    """Return the route `POST /platform/capacity`; errors are plain text."""

    async def post(request: HttpRequest) -> Response:
        """Respond with the current shortage, null if the request fits now; 422 if no node can ever hold it."""
        body = await request_body.parsed(request.receive, _Body, _BODY_BYTES, "request fewer kinds of resources")
        asked = body.request()
        shortage = await admission.shortage(asked)
        if shortage is not None:
            shortage = await _with_users(shortage, asked, reconciler, head)
        return JSONResponse({"shortage": asdict(shortage) if shortage else None})

    return [Route("/platform/capacity", post, methods=["POST"])]


async def _with_users(shortage: Shortage, asked: Request, reconciler: Reconciler, head: RayHead) -> Shortage:
    """Add the jobs that hold some of the requested resources, if the head answers."""
    kinds = {*asked.entrypoint.amounts(), *(asked.workers.amounts() if asked.workers else {})}
    with suppress(UnreachableError, TimeoutError):
        async with asyncio.timeout(LISTING_SECONDS):
            cluster, actors = await asyncio.gather(reconciler.look(), head.living_actors())
        return replace(shortage, users=users_of(kinds, actors, cluster.jobs.values()))
    return shortage
