"""HTTP proxies for builds and containers; as a program, their exports for platform/compose.sh."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlplatform.settings.environment import environment
from mlplatform.settings.proxies import BYPASS, uses_environment

_OF_DOCKER = {"http_proxy": "httpProxy", "https_proxy": "httpsProxy", "no_proxy": "noProxy"}
"""Names in Docker's client configuration."""


def for_containers(of_file: Mapping[str, str | None]) -> dict[str, str]:
    """Return the proxies for builds and containers: those of this process, else of `.env`, else of Docker's client.

    Compose passes the first two by itself, but not the third for a variable that a service declares without a value.
    A proxy at this machine's loopback address is empty: containers have another one.

    Args:
        of_file: the variables in `.env`.
    """
    given = {**of_file, **environment()}
    found = {name: value for name, value in given.items() if name.lower() in _OF_DOCKER and value}
    if not any(name.lower() != "no_proxy" for name in found):
        of_client = {name: value for name, key in _OF_DOCKER.items() if (value := _of_docker_client().get(key))}
        found = {**of_client, **{name.upper(): value for name, value in of_client.items()}, **found}
    return {name: value if name in BYPASS or uses_environment(value) else "" for name, value in found.items()}


def _of_docker_client() -> dict[str, Any]:
    folder = Path(environment().get("DOCKER_CONFIG") or Path.home() / ".docker")
    try:
        found: dict[str, Any] = json.loads((folder / "config.json").read_text())["proxies"]["default"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return found


if __name__ == "__main__":
    # Without those of `.env`, which Compose itself reads.
    print("\n".join(f"export {name}={shlex.quote(value)}" for name, value in for_containers({}).items()))
