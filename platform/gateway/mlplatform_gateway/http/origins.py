"""Origins of browsers' requests, compared with the address to which each was sent (RFC 6454)."""

from __future__ import annotations

from collections.abc import Iterable


def foreign_origin(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the first `Origin` that is not the request's own address, port included.

    Browsers send the header with everything that changes something, and with whatever a script of another origin reads.

    Args:
        headers: names in lower case, and values, as ASGI has them.

    Returns:
        The origin, cut to 200 characters for messages; None without a foreign one.
    """
    found: dict[bytes, list[str]] = {b"origin": [], b"host": []}
    for name, value in headers:
        if name in found:
            found[name].append(value.decode("latin-1"))
    host = found[b"host"][0] if len(found[b"host"]) == 1 else ""
    return next((origin[:200] for origin in found[b"origin"] if not _is_address(origin, host)), None)


def _is_address(origin: str, host: str) -> bool:
    """Return whether an origin is the address to which a request was sent; a TLS proxy may have changed the scheme."""
    scheme, _, origin_host = origin.lower().partition("://")
    port = {"http": ":80", "https": ":443"}.get(scheme)
    return port is not None and origin_host.removesuffix(port) == host.lower().removesuffix(port)
