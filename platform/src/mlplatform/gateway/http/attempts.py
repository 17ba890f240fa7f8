"""Routes for attempts of jobs, which authenticate with the attempt's token."""

from __future__ import annotations

import re
from base64 import b64encode
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Response

from mlplatform.contract import RUNS
from mlplatform.gateway.errors import RequestError
from mlplatform.gateway.http.access import ATTEMPTS
from mlplatform.gateway.http.routing import router
from mlplatform.gateway.jobs.runs import JobRuns
from mlplatform.gateway.people.principal import Principal
from mlplatform.gateway.people.secrets import Secrets
from mlplatform.secret_folder import PATH as SECRETS

_RUN = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)

_Attempt = Annotated[Principal, Depends(ATTEMPTS)]

_RunId = Annotated[str, Path(json_schema_extra={"pattern": f"^{_RUN.pattern}$"})]


def of_attempts(secrets: Secrets, runs: JobRuns) -> APIRouter:
    """Return the routes below `/platform/attempt`.

    Args:
        secrets: secrets of people.
        runs: record of the jobs' runs.
    """
    routes = router()

    @routes.get(SECRETS)
    async def of_owner(response: Response, principal: _Attempt) -> dict[str, dict[str, str]]:
        """The secrets of a job's owner by name, in base64; only with the token of an attempt that runs."""
        values = await secrets.values(principal.person)
        response.headers["Cache-Control"] = "no-store"
        return {"secrets": {name: b64encode(value).decode() for name, value in values.items()}}

    @routes.put(f"{RUNS}/{{run_id}}")
    async def report(
        principal: _Attempt,
        run_id: _RunId,
        own: Annotated[str, Query(description="1 for the run that all attempts of the job share.")] = "0",
    ) -> dict[str, str]:
        """Record a run at MLflow as one of the job; only with the attempt's own token.

        It ends with the job, and the job's links may lead to it.
        """
        if not _RUN.fullmatch(run_id):
            raise RequestError(f"Invalid id of a run {run_id[:100]!r}: use up to 64 letters, digits, '-' and '_'.")
        assert principal.attempt is not None  # noqa: S101 - the right admits attempts only
        await runs.report(principal.attempt.job, principal.attempt.number, run_id, own == "1")
        return {"recorded": run_id}

    return routes
