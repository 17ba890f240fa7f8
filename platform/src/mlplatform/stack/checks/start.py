"""Problems that prevent a start, settings and variables that do not fit, and what jobs can reach on a cloud."""

from __future__ import annotations

from collections.abc import Iterator

from mlplatform.errors import HostError
from mlplatform.stack import doctor, firewall, shell, sizing, unfinished
from mlplatform.stack.checks.finding import Finding, Place
from mlplatform.stack.host import this_host


def start_problems(place: Place) -> Iterator[Finding]:
    """Yield what `make up` refuses to start with: engine, drivers, disk, images, ports and networks."""
    try:
        doctor.check_host(place.root, place.only)
    except HostError as error:
        for line in str(error).splitlines():
            problem, _, fix = line.partition(": ")
            yield Finding(problem, "The stack cannot start like this.", fix or line, blocks=True)


def interrupted(place: Place) -> Iterator[Finding]:
    """Yield an upgrade, a rotation of secrets or a restore that was interrupted."""
    for _, sentence in unfinished.interrupted(place.root):
        problem, _, fix = sentence.partition(": ")
        yield Finding(problem, "Services are stopped, or have a part of their data or secrets only.", fix, blocks=True)


def misfits(place: Place) -> Iterator[Finding]:
    """Yield the settings that no longer fit this host."""
    for sentence in sizing.misfits(place.settings, this_host()):
        problem, _, fix = sentence.partition(": ")
        yield Finding(problem, "Jobs run out of memory, or leave hardware unused.", fix)


def quotas(place: Place) -> Iterator[Finding]:
    """Yield quotas that nothing enforces: S3 has no interface for them, so they are set at our own store only."""
    if (server := place.settings.s3_endpoint) and (limits := place.settings.bucket_quotas):
        yield Finding(
            f"BUCKET_QUOTAS={limits} has no effect at S3_ENDPOINT_URL={server}.",
            "A bucket can grow until that server's disk is full.",
            "set quotas at that server, and leave BUCKET_QUOTAS empty in .env",
        )


def exported(place: Place) -> Iterator[Finding]:
    """Yield the variables that this shell exports with other values than `.env`."""
    for problem in shell.problems(place.root):
        why = "The verbs of make and `mlplatform` use .env alone; plain `docker compose` would use these values."
        yield Finding(problem, why, f"unset {' '.join(shell.in_the_way(place.root))}")


def metadata_address(place: Place) -> Iterator[Finding]:
    """Yield that containers can reach the metadata address of the host's cloud."""
    for note in firewall.notes(place.settings):
        why = "A job could act with the rights of the host at the provider of the cloud."
        yield Finding(f"{note.partition('. ')[0]}.", why, firewall.RULE)
