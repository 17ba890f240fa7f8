"""Networks of people's notebooks."""

from __future__ import annotations

from collections.abc import Iterator

from mlplatform.stack import notebooks
from mlplatform.stack.checks.finding import Finding, Place


def of_notebooks(place: Place) -> Iterator[Finding]:
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
