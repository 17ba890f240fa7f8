"""Rules of the host's firewall that keep jobs from the host's credentials on a cloud."""

from __future__ import annotations

from collections.abc import Iterator

from mlplatform.stack import firewall
from mlplatform.stack.checks.finding import Finding, Place


def metadata_address(place: Place) -> Iterator[Finding]:
    """Yield the missing rule, or that only root can look for it."""
    del place  # the firewall is the host's
    for note in firewall.notes():
        yield Finding(
            f"{note.partition('. ')[0]}.",
            "A job could act with the rights of the host at the provider of the cloud.",
            firewall.RULE,
        )
