"""The gateway's record of the digests of registered models, with which their files are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlplatform.api.storage import Digests
from mlplatform.client.connection import Connection
from mlplatform.contract import MODEL_DIGESTS
from mlplatform.errors import PlatformError
from mlplatform.settings.job import settings

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion


def of(version: ModelVersion) -> dict[str, str] | str:
    """Return path -> SHA-256 of each file of a version as recorded; a sentence if there is no record.

    Raises:
        UnreachableError, AccessError: the environment names a gateway that does not answer, or rejects the token.
        JobError: what answers there is not the platform's gateway.
    """
    config = settings()
    own = config.platform_tracking_uri
    if own and config.tracking_uri and own.rstrip("/") != config.tracking_uri.rstrip("/"):
        return "MLFLOW_TRACKING_URI is not the platform's own MLflow."
    key = {"source": str(version.source), "created": int(version.creation_timestamp)}
    try:
        with Connection(config) as link:
            found = link.patiently(lambda: link.read(Digests, "GET", MODEL_DIGESTS, params=key), known=False).files
    except PlatformError as error:
        if "ray_address" in config.model_fields_set:
            raise
        return f"RAY_ADDRESS names no gateway ({error})"
    return found or "it has no digests of this version yet; try again in some seconds."
