"""Routes for MLflow: the changes that its server reports, and the digests of registered models."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from mlplatform.api.base import Count
from mlplatform.api.storage import Digests, MlflowChange
from mlplatform.contract import MLFLOW_CHANGES, MODEL_DIGESTS
from mlplatform.gateway.audit.log import UNKNOWN, Actor, AuditLog
from mlplatform.gateway.control.digests import ModelDigests
from mlplatform.gateway.http.access import OF_MLFLOW, User
from mlplatform.gateway.http.routing import JsonBody, router
from mlplatform.gateway.models.digests import DigestStore

_KIND = "mlflow"
"""Kind of the credential in the audit log: an account of MLflow."""

_BODY = JsonBody(MlflowChange, instead="send one change")

_Created = Annotated[
    Count, Query(description="Time of the registration, in milliseconds since 1970, as MLflow has it.")
]


def of_mlflow(audit: AuditLog, store: DigestStore, digests: ModelDigests) -> APIRouter:
    """Return the routes for MLflow and for models."""
    routes = router()

    @routes.post(MLFLOW_CHANGES, dependencies=[Depends(OF_MLFLOW)])
    async def change(made: Annotated[MlflowChange, Depends(_BODY)]) -> dict[str, bool]:
        """Record a change at MLflow; for its server, with the password of the gateway's account there.

        Digests of new versions of models are recorded, too.
        """
        await audit.add(Actor(made.account or UNKNOWN, _KIND, made.address), made.method, made.path, after=made.values)
        digests.wake()
        return {"recorded": True}

    @routes.get(MODEL_DIGESTS)
    async def get(
        _: User, created: _Created, source: Annotated[str, Query(description="As MLflow has it.")]
    ) -> Digests:
        """Digests of the files of a registered model's version."""
        found = await store.of(source, created)
        if found is None:
            digests.wake()
            return Digests(files=None, recorded=None)
        return Digests(files=dict(found.files), recorded=found.time)

    return routes
