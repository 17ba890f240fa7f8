"""Alerts that fire: with monitoring, they are the checks of a running stack."""

from __future__ import annotations

from collections.abc import Iterator

import httpx

from mlplatform.errors import HostError
from mlplatform_stack.checks.finding import Finding, Place
from mlplatform_stack.settings import LOOPBACK, StackSettings


def are_on(settings: StackSettings) -> bool:
    """Return whether the stack has a Prometheus, which evaluates the alerts."""
    return "monitoring" in settings.compose_profiles.split(",")


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
    if not answer.is_success:
        raise HostError(f"Prometheus answers with {answer.status_code}, so its alerts are unknown")
    for alert in answer.json()["data"]["alerts"]:
        if alert["state"] == "firing":
            labels, texts = alert["labels"], alert["annotations"]
            why = f"The alert {labels['alertname']} fires, active since {alert['activeAt'][:16].replace('T', ' ')} UTC."
            yield Finding(texts["summary"], why, texts["action"], blocks=labels["severity"] == "critical")
