"""Routes for MLflow: the changes that its server reports, and the digests of registered models."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mlplatform.contract import MLFLOW_CHANGES, MODEL_DIGESTS
from mlplatform.gateway.audit.log import UNKNOWN, Actor, AuditLog
from mlplatform.gateway.control.digests import ModelDigests
from mlplatform.gateway.errors import RequestError
from mlplatform.gateway.http import request_body
from mlplatform.gateway.http.logs import number_in

_BODY_BYTES = 16 << 10

_KIND = "mlflow"
"""Kind of the credential in the audit log: an account of MLflow."""

# Postgres stores no NUL.
_Text = Annotated[str, Field(max_length=1000, pattern=r"^[^\x00]*$")]


class _Change(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    account: _Text
    address: _Text
    method: Annotated[str, Field(max_length=20)]
    path: _Text
    values: Annotated[dict[str, _Text], Field(max_length=50)]


def routes(audit: AuditLog, digests: ModelDigests) -> list[Route]:
    """Return the routes; errors are plain text."""

    async def change(request: Request) -> Response:
        """Record a change at MLflow, and look for new versions of models."""
        made = await request_body.parsed(request.receive, _Change, _BODY_BYTES, "send one change")
        actor = Actor(made.account or UNKNOWN, _KIND, made.address)
        await audit.add(actor, made.method, made.path, after=made.values)
        digests.wake()
        return JSONResponse({"recorded": True})

    async def get(request: Request) -> Response:
        """Respond with the digests of a version's files; null before they are recorded."""
        source = request.query_params.get("source", "")
        if "\0" in source:
            raise RequestError(f"source is {source!r}, which contains NUL; send it as MLflow has it.")
        found = await digests.of(source, number_in("created", request.query_params.get("created", "")))
        if found is None:
            digests.wake()
            return JSONResponse({"files": None, "recorded": None})
        return JSONResponse({"files": found.files, "recorded": found.recorded.isoformat()})

    return [Route(MLFLOW_CHANGES, change, methods=["POST"]), Route(MODEL_DIGESTS, get, methods=["GET"])]
