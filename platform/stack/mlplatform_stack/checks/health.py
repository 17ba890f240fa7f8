"""State of the containers of a running stack, and their connections to the notebooks of people."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from mlplatform_stack import docker
from mlplatform_stack.checks.finding import Finding, Place
from mlplatform_stack.notebooks import verbs as notebooks
from mlplatform_stack.services import exporters


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


def unconnected_notebooks(place: Place) -> Iterator[Finding]:
    """Yield each service that a person's notebook cannot reach, as after a start without `make up`."""
    for person, service, network in notebooks.unconnected(place.root, place.settings):
        yield Finding(
            f"The notebook of {person} cannot reach {service}, which is not on the network {network}.",
            "A container that was created without `make up` is on its own networks only.",
            "make up",
            repair=partial(notebooks.connect, place.root),
        )
