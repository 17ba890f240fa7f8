"""Route that returns the audit log."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query

from mlplatform.api.audit import AuditEntry, Entries, Window
from mlplatform_gateway.audit.store import AuditLog
from mlplatform_gateway.http.access import ADMINISTRATORS

_LAST_SECOND = 253402300799
"""The end of the year 9999, which is the last that Python and the databases can represent."""


def routes(audit: AuditLog) -> APIRouter:
    """Return the route `GET /platform/audit`."""
    router = APIRouter()

    @router.get("/platform/audit", dependencies=[ADMINISTRATORS])
    async def get(window: Annotated[Window, Query()]) -> Entries:
        """The audit log, whose entries nobody can change.

        Submissions, stops and deletions of jobs, log-ins, log-outs and failed log-ins, first uploads of packages; and
        of kind `mlflow`, changes that MLflow has reported, whose verb is a method and whose object is a path there.
        """
        since = None if window.since is None else datetime.fromtimestamp(min(window.since, _LAST_SECOND), UTC)
        rows = await audit.read(window.limit, since, window.before)
        return Entries(entries=[AuditEntry.model_validate(row) for row in rows])

    return router
