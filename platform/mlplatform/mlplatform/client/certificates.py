"""Which certificates an HTTP client reads: reading the system's takes 60 ms of CPU time, per client."""

from __future__ import annotations

import ssl


def verification(*addresses: str) -> ssl.SSLContext | bool:
    """Return httpx's option `verify` for a client that connects to certain addresses only.

    Args:
        addresses: URLs.

    Returns:
        True, which means the usual certificates, if an address is `https://`; else a context that trusts none.
    """
    encrypted = any(address.lower().startswith("https://") for address in addresses)
    return encrypted or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
