"""Route that reports the free space of the disks, for `mlplatform doctor`."""

from __future__ import annotations

from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mlplatform.gateway.control.disks import Disks

PATH = "/platform/disks"


def routes(disks: Disks) -> list[Route]:
    """Return the route `GET /platform/disks`."""

    async def get(_: Request) -> Response:
        found = [asdict(disk) for disk in await disks.read()]
        return JSONResponse({"disks": found, "reserve": disks.reserve, "problem": await disks.problem()})

    return [Route(PATH, get, methods=["GET"])]
