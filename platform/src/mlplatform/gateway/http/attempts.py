"""Routes for attempts of jobs, which authenticate with the attempt's token."""

from __future__ import annotations

import re
from base64 import b64encode

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mlplatform.contract import RUNS
from mlplatform.gateway.errors import RequestError
from mlplatform.gateway.http.auth import principal_of
from mlplatform.gateway.jobs.runs import JobRuns
from mlplatform.gateway.people.principal import Attempt
from mlplatform.gateway.people.secrets import Secrets
from mlplatform.secret_folder import PATH as SECRETS

_RUN = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


def routes(secrets: Secrets, runs: JobRuns) -> list[Route]:
    """Return the routes; errors are plain text.

    Args:
        secrets: secrets of people.
        runs: record of the jobs' runs.
    """

    async def of_owner(request: Request) -> Response:
        """Respond with the secrets of the job's owner, their values in base64."""
        values = await secrets.values(principal_of(request.scope).person)
        encoded = {name: b64encode(value).decode() for name, value in values.items()}
        return JSONResponse({"secrets": encoded}, headers={"Cache-Control": "no-store"})

    async def report(request: Request) -> Response:
        """Record a run at MLflow as one of the job; with `?own=1`, as the job's own."""
        attempt, run_id = _attempt(request), request.path_params["run_id"]
        if not _RUN.fullmatch(run_id):
            raise RequestError(f"Invalid id of a run {run_id[:100]!r}: use up to 64 letters, digits, '-' and '_'.")
        await runs.report(attempt.job, attempt.number, run_id, request.query_params.get("own") == "1")
        return JSONResponse({"recorded": run_id})

    return [
        Route(SECRETS, of_owner, methods=["GET"]),
        Route(f"{RUNS}/{{run_id}}", report, methods=["PUT"]),
    ]


def _attempt(request: Request) -> Attempt:
    attempt = principal_of(request.scope).attempt
    assert attempt is not None  # noqa: S101 - `access` admits attempts only
    return attempt
