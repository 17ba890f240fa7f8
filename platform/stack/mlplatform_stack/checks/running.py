"""State of a running stack: containers that failed, alerts that fire, and whose rights the shared notebook has."""

from __future__ import annotations

from collections.abc import Iterator

import httpx

from mlplatform.errors import HostError
from mlplatform_stack import docker
from mlplatform_stack.checks.finding import Finding, Place
from mlplatform_stack.services import exporters
from mlplatform_stack.settings import LOOPBACK, StackSettings


def unhealthy(place: Place) -> Iterator[Finding]:
    """Yield each container that failed, restarts again and again, or is unhealthy; none if no stack runs here."""
    for service, name, state in docker.failed(place.root, timeout_s=60):
        optional = service in exporters(place.root)
        yield Finding(
            f"The container {name} {state}.",
            "Pages about GPUs show the numbers that Ray measures."
            if optional
            else "What it serves is unavailable, and services that need it wait.",
            f"make logs SERVICE={service}",
            blocks=not optional,
        )


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


def shared_notebook(place: Place) -> Iterator[Finding]:
    """Yield whose rights the shared notebook has, once people have tokens of their own."""
    settings, token = place.settings, place.root / "secrets" / "ray_token"
    if "notebook" not in settings.compose_profiles.split(",") or not token.is_file():
        return
    address, headers = (
        f"http://{LOOPBACK}:{settings.ray_port}/platform/people",
        {"Authorization": f"Bearer {token.read_text()}"},
    )
    try:
        answer = httpx.get(address, headers=headers, timeout=10, trust_env=False)
    except httpx.TransportError:
        return  # as above
    if answer.is_success and (people := answer.json()["people"]):
        yield Finding(
            f"The shared notebook has the shared token, an administrator's; people with own tokens: {len(people)}.",
            "Whoever opens it may stop and delete everybody's jobs.",
            "Take notebook out of COMPOSE_PROFILES in .env, then `make up`; people have `mlplatform dev start`.",
        )
