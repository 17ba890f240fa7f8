"""Routes for attempts of jobs, which authenticate with the attempt's token."""

from __future__ import annotations

import re
from base64 import b64encode
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from mlplatform.contract import RUNS
from mlplatform.secrets.secret_folder import PATH as SECRETS
from mlplatform_gateway.errors import RequestError
from mlplatform_gateway.http.access import ATTEMPTS
from mlplatform_gateway.jobs.runs import JobRuns
from mlplatform_gateway.people.principal import Principal
from mlplatform_gateway.people.secrets import Secrets

_RUN = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)

_Attempt = Annotated[Principal, ATTEMPTS]
_RunId = Annotated[str, Path(json_schema_extra={"pattern": f"^{_RUN.pattern}$"})]
_Own = Annotated[str, Query(description="1 for the run that all attempts of the job share.")]


def routes(secrets: Secrets, runs: JobRuns) -> APIRouter:
    """Return the routes.

    Args:
        secrets: secrets of people.
        runs: record of the jobs' runs.
    """
    router = APIRouter()

    @router.get(SECRETS)
    async def of_owner(response: Response, principal: _Attempt) -> dict[str, dict[str, str]]:
        """The secrets of a job's owner by name, in base64, for an attempt that runs; only with the attempt's token."""
        values = await secrets.values(principal.person)
        response.headers["Cache-Control"] = "no-store"
        return {"secrets": {name: b64encode(value).decode() for name, value in values.items()}}

    @router.put(f"{RUNS}/{{run_id}}")
    async def report(principal: _Attempt, run_id: _RunId, own: _Own = "0") -> dict[str, str]:
        """Record a run at MLflow as one of the job; only with the attempt's own token.

        It ends with the job, and the job's links may lead to it.
        """
        if not _RUN.fullmatch(run_id):
            raise RequestError(f"Invalid id of a run {run_id[:100]!r}: use up to 64 letters, digits, '-' and '_'.")
        assert principal.attempt is not None  # noqa: S101 - the right admits attempts only
        await runs.report(principal.attempt.job, principal.attempt.number, run_id, own == "1")
        return {"recorded": run_id}

    return router
