"""State of the containers of a running stack, and their connections to the notebooks of people."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

from mlplatform.stack import notebooks
from mlplatform.stack.checks.finding import Finding, Place
from mlplatform.stack.docker import compose
from mlplatform.stack.services import GPU_EXPORTERS

_ENDED = ("created", "exited", "dead", "restarting")


def unhealthy(place: Place) -> Iterator[Finding]:
    """Yield each container that failed, restarts again and again, or is unhealthy; none if no stack runs here."""
    command = compose(place.root, "--profile", "*", "ps", "--all", "--format", "json")
    try:
        listing = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except FileNotFoundError:
        return  # reported as a problem of the start
    yield from of_containers([json.loads(line) for line in listing.stdout.splitlines()])


def of_containers(containers: list[dict[str, object]]) -> Iterator[Finding]:
    """Yield the findings in a list of `docker compose ps`."""
    for container in containers:
        name, state = container["Name"], container["State"]
        if container.get("Health") == "unhealthy":
            problem = f"The container {name} is unhealthy."
        elif state == "restarting" or (state in _ENDED and container["ExitCode"]):
            problem = f"The container {name} is {state}, with exit code {container['ExitCode']}."
        else:
            continue
        optional = container["Service"] in GPU_EXPORTERS.values()
        yield Finding(
            problem,
            "Pages about GPUs show the numbers that Ray measures."
            if optional
            else "What it serves is unavailable, and services that need it wait.",
            f"make logs SERVICE={container['Service']}",
            blocks=not optional,
        )


def unconnected_notebooks(place: Place) -> Iterator[Finding]:
    """Yield each service that a person's notebook cannot reach, as after a start without `make up`."""

    def connect() -> None:
        notebooks.connect(place.root)

    for person, service, network in notebooks.unconnected(place.root, place.settings):
        yield Finding(
            f"The notebook of {person} cannot reach {service}, which is not on the network {network}.",
            "A container that was created without `make up` is on its own networks only.",
            "make up",
            repair=connect,
        )
