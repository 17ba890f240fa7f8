"""The gateway's OpenAPI description."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import yaml


@cache
def schemas() -> dict[str, Any]:
    """Schemas of requests and responses, by name."""
    text = files("mlplatform.gateway.http").joinpath("openapi.yaml").read_text()
    found: dict[str, Any] = yaml.safe_load(text)["components"]["schemas"]
    return found
