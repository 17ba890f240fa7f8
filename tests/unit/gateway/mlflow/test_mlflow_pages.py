"""Origins of requests to MLflow, by the name at which its page was opened."""

from __future__ import annotations

import httpx
from ray_head import BOUND_S, NO_TLS, served
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from mlplatform_gateway.mlflow.server.pages import for_own_pages


async def echo(request: Request) -> JSONResponse:
    return JSONResponse(dict(request.headers))


def test_own_page_below_any_name_passes_without_its_origin() -> None:
    """MLflow 3.17 refuses changes by its own page at `mlflow.localhost`, and answers that of `localhost` with CORS."""
    with served(for_own_pages(Starlette(routes=[Route("/", echo, methods=["POST"])]))) as address:
        port = address.rpartition(":")[2]
        own, other = f"mlflow.localhost:{port}", f"minio.localhost:{port}"
        for host, origin, status in ((own, own, 200), (own, other, 403), (own, "mlflow.localhost:1", 403)):
            headers = {"Host": host, "Origin": f"http://{origin}"}
            answer = httpx.post(address, headers=headers, timeout=BOUND_S, verify=NO_TLS)
            assert answer.status_code == status, origin
            assert status != 200 or "origin" not in answer.json()
