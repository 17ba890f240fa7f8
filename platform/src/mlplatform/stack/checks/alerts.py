"""Alerts that fire: with monitoring, they are the checks of a running stack. One problem has no alert: no backups."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import httpx

from mlplatform.errors import HostError
from mlplatform.settings.stack import LOOPBACK, StackSettings
from mlplatform.stack.checks.finding import Finding, Place

_REJECTED = (401, 403)

_HOUR = 3600.0

_WITHOUT_TIMER = 7 * 24 * _HOUR


def are_on(settings: StackSettings) -> bool:
    """Return whether the stack has a Prometheus, which evaluates the alerts."""
    return "monitoring" in settings.profiles.split(",")


def firing(place: Place) -> Iterator[Finding]:
    """Yield each alert that fires; none while Prometheus does not run.

    Raises:
        HostError: Prometheus cannot answer.
    """
    settings, password = place.settings, place.root / "secrets" / "prometheus_password"
    if not are_on(settings) or not password.is_file():
        return
    address = f"http://{LOOPBACK}:{settings.prometheus_port}/api/v1/alerts"
    try:
        answer = httpx.get(address, auth=("prometheus", password.read_text()), timeout=10, trust_env=False)
    except httpx.TransportError:
        return  # `health` reports a service of ours that failed
    if answer.status_code in _REJECTED:
        return  # `accounts.rejected` reports it
    if not answer.is_success:
        raise HostError(f"Prometheus answers with {answer.status_code}, so its alerts are unknown")
    for alert in answer.json()["data"]["alerts"]:
        if alert["state"] == "firing":
            labels, texts = alert["labels"], alert["annotations"]
            why = f"The alert {labels['alertname']} fires, active since {alert['activeAt'][:16].replace('T', ' ')} UTC."
            yield Finding(texts["summary"], why, texts["action"], blocks=labels["severity"] == "critical")


def no_backups(place: Place) -> Iterator[Finding]:
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
