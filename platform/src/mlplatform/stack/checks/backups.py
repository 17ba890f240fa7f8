"""Age of the last complete backup, which the gateway publishes with its metrics."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import httpx

from mlplatform.settings.stack import LOOPBACK
from mlplatform.stack.checks.finding import Finding, Place

_HOUR = 3600.0

_WITHOUT_TIMER = 7 * 24 * _HOUR


def untimed(place: Place) -> Iterator[Finding]:
    """Yield that the last backup is old or missing, without a timer; nothing while the gateway does not run.

    No alert says this, because it would be sent again and again to those who want no backups; `BackupTooOld` watches
    the timer.
    """
    found = _published(place)
    if not {"success_timestamp", "interval"} <= found.keys() or found["interval"]:
        return
    since = time.time() - found["success_timestamp"]
    if since > _WITHOUT_TIMER:
        never = not found["success_timestamp"]
        last = "No backup has been completed" if never else f"The last complete backup is {since / _HOUR:.0f} hours old"
        yield Finding(
            f"{last}, and BACKUP_TO in .env is empty.",
            "Whatever was added since then is lost with this host's disk.",
            "set BACKUP_TO in .env to a folder on another disk or to a server, and run `make up`",
        )


def _published(place: Place) -> dict[str, float]:
    token = place.root / "secrets" / "prometheus_password"
    if not token.is_file():
        return {}
    address = f"http://{LOOPBACK}:{place.settings.ray_port}/platform/metrics"
    try:
        answer = httpx.get(address, headers={"Authorization": f"Bearer {token.read_text()}"}, timeout=10)
    except httpx.TransportError:
        return {}  # `health` reports a service of ours that failed
    lines = re.findall(r"^mlplatform_backup_(\w+)_seconds (\S+)$", answer.text if answer.is_success else "", re.M)
    return {name: float(number) for name, number in lines}
