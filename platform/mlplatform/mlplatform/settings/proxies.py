"""HTTP proxies that the environment names, and the hosts that are reached without one."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

from mlplatform.settings.environment import environment

BYPASS = ("NO_PROXY", "no_proxy")
"""Clients read one or the other: Python prefers the second, Go the first."""

_LOOPBACK = "localhost,127.0.0.1,::1"

_OF_DOCKER = {"http_proxy": "httpProxy", "https_proxy": "httpsProxy", "no_proxy": "noProxy"}
"""Names in Docker's client configuration."""


def bypass(*lists: str | None) -> dict[str, str]:
    """Return NO_PROXY and no_proxy with the hosts of these lists, of this process, and the names of this machine."""
    own = map(environment().get, BYPASS)
    hosts = (host.strip() for hosts in (*lists, *own, _LOOPBACK) for host in (hosts or "").split(","))
    return dict.fromkeys(BYPASS, ",".join(dict.fromkeys(filter(None, hosts))))


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


def uses_environment(address: str) -> bool:
    """Return whether a client of this address follows the environment's proxies: no proxy reaches this machine."""
    host = urlsplit(address).hostname or ""
    return host not in _LOOPBACK.split(",") and not host.endswith(".localhost")


def hint(address: str) -> str:
    """Return the end of an error message that names a proxy between this process and an address; empty without one."""
    host, proxies = urlsplit(address).hostname or "", getproxies_environment()
    scheme = next((scheme for scheme in (urlsplit(address).scheme, "all") if scheme in proxies), None)
    if not scheme or not uses_environment(address) or proxy_bypass_environment(host, proxies):
        return ""
    return f" {scheme.upper()}_PROXY sends requests to a proxy; if that does not reach {host}, add {host} to NO_PROXY."


if __name__ == "__main__":
    # For platform/compose.sh; Compose itself reads those of .env.
    print("\n".join(f"export {name}={shlex.quote(value)}" for name, value in for_containers({}).items()))
