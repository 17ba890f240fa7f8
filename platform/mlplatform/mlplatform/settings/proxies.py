"""HTTP proxies that the environment names, and the hosts that are reached without one."""

from __future__ import annotations

from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

from mlplatform.settings.environment import environment

BYPASS = ("NO_PROXY", "no_proxy")
"""Clients read one or the other: Python prefers the second, Go the first."""

_LOOPBACK = "localhost,127.0.0.1,::1"


def bypass(*lists: str | None) -> dict[str, str]:
    """Return NO_PROXY and no_proxy with the hosts of these lists, of this process, and the names of this machine."""
    own = map(environment().get, BYPASS)
    hosts = (host.strip() for hosts in (*lists, *own, _LOOPBACK) for host in (hosts or "").split(","))
    return dict.fromkeys(BYPASS, ",".join(dict.fromkeys(filter(None, hosts))))


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
