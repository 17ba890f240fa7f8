"""The gateway's OpenAPI description, as a gateway generates it."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from started_gateway import StartedGateway

from mlplatform_gateway.app import create_app


@cache
def description() -> dict[str, Any]:
    """The whole description."""
    with TemporaryDirectory() as folder:
        return create_app(StartedGateway(Path(folder), "http://127.0.0.1:9").settings()).openapi()


def schemas() -> dict[str, Any]:
    """Schemas of requests and responses, by name."""
    return description()["components"]["schemas"]
