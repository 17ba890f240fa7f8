"""Browser detection, shared by the CSRF guard and by the redaction of runtime environments."""

from __future__ import annotations

from starlette.datastructures import Headers

_PREFIXES = ("sec-fetch-", "access-control-")


def is_browser(headers: Headers) -> bool:
    """Return whether a browser probably sent the request.

    The heuristics of `ray.dashboard.optional_utils.is_browser_request` (Ray 2.60): a user agent that begins with
    'Mozilla', `Origin`, `Referer`, or any Fetch Metadata or CORS header. Ray lists the last two by name; matching
    their prefixes also covers names that a later browser adds.
    """
    return (
        headers.get("user-agent", "").startswith("Mozilla")
        or "origin" in headers
        or "referer" in headers
        or any(name.startswith(_PREFIXES) for name in headers)
    )
