"""Route for the log shipper: upload bytes of a node's log of process starts."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mlplatform.contract import START_LOG
from mlplatform.gateway.errors import RequestError
from mlplatform.gateway.http import request_body
from mlplatform.gateway.http.logs import name_in, number_in
from mlplatform.gateway.http.metrics import Metrics
from mlplatform.gateway.jobs.starts import StartStore

BODY_BYTES = 256 << 10


def routes(starts: StartStore, metrics: Metrics) -> list[Route]:
    """Return the route `PUT /platform/starts/<node>/<file>`; errors are plain text."""

    async def put(request: Request) -> Response:
        """Count the starts in the bytes: 200 with the next offset, 409 with the offset expected; an empty body asks."""
        node, file = name_in("node", request.path_params["node"]), request.path_params["file"]
        if not START_LOG.fullmatch(file):
            raise RequestError(f"Invalid file {file[:100]!r}: use `starts-<16 hexadecimal digits>.jsonl`.")
        offset = number_in("offset", request.query_params.get("offset", ""))
        body = await request_body.whole(request.receive, BODY_BYTES, "send it in several requests")
        accepted = await starts.accept(node, file, offset, body)
        metrics.count(accepted.counted)
        status = 409 if body and not offset <= accepted.expected <= offset + len(body) else 200
        return JSONResponse({"expected": accepted.expected}, status)

    return [Route("/platform/starts/{node}/{file}", put, methods=["PUT"])]
