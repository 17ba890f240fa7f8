"""Schemas of the databases, and the buckets with their versioning, as the account of backups sees them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

from mlplatform.errors import HostError
from mlplatform.stack import compose as stack_compose
from mlplatform.stack import services
from mlplatform.stack.checks.finding import Finding, Place
from mlplatform.stack.compose_command import compose

_SECONDS = 60
"""A container starts and imports MLflow's migrations: 5 s on two idle cores."""


def databases_and_buckets(place: Place) -> Iterator[Finding]:
    """Yield each database without this version's tables, and each bucket that is missing or keeps no versions.

    Nothing while Postgres or the stack's own object store does not run, or before the first `make up`.
    """
    try:
        if not stack_compose.running(place.root) >= set(services.stores(place.settings)):
            return
    except (HostError, FileNotFoundError):
        return  # reported as a problem of the start
    command = compose(place.root, "run", "--rm", "--no-TTY", "--no-deps", "backup", "inspect")
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=_SECONDS
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise HostError(f"databases and buckets cannot be read ({reason})")
    state = json.loads(done.stdout.splitlines()[-1])  # a library may print before

    def create() -> None:
        again = compose(place.root, "up", "--no-build", "--no-deps", "storage-init")
        subprocess.run(again, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)

    yield from of_databases(state["databases"])
    for finding in of_buckets(state["buckets"], external=bool(place.settings.s3_endpoint)):
        yield Finding(finding.problem, finding.why, finding.fix, finding.blocks, repair=create)


def quotas(place: Place) -> Iterator[Finding]:
    """Yield quotas that nothing enforces: S3 has no interface for them, so they are set at our own store only."""
    if (server := place.settings.s3_endpoint) and (limits := place.settings.bucket_quotas):
        yield Finding(
            f"BUCKET_QUOTAS={limits} has no effect at S3_ENDPOINT_URL={server}.",
            "A bucket can grow until that server's disk is full.",
            "set quotas at that server, and leave BUCKET_QUOTAS empty in .env",
        )


def of_databases(databases: dict[str, dict[str, Any]]) -> Iterator[Finding]:
    """Yield each database whose tables are of another version."""
    for name, state in databases.items():
        if state["found"] == state["needed"] or (state["found"] is None and name != "gateway"):
            continue  # without MLflow (ONLY=ray), its databases have no tables
        if not state["known"]:
            yield Finding(
                f"The database {name} has revision {state['found']}, which this version does not know.",
                "This version's services do not start with it, or store what the version that wrote it cannot read.",
                "check out the version that wrote it, or restore a backup of this one: `make restore FROM=... FORCE=1`",
                blocks=True,
            )
        elif state["found"] is not None:
            yield Finding(
                f"The database {name} has revision {state['found']}, but this version needs {state['needed']}.",
                "Requests that need the missing tables or columns fail.",
                "make up",
                blocks=True,
            )


def of_buckets(buckets: dict[str, dict[str, Any]], external: bool = False) -> Iterator[Finding]:
    """Yield each bucket that is missing, or keeps no former versions although it should.

    Args:
        buckets: of `services.backup.inspection`.
        external: the server is not the stack's own; it may have no versions.
    """
    for name, state in buckets.items():
        if state["versioning"] is None:
            yield Finding(
                f"The bucket {name} does not exist.",
                "Uploads to it fail: checkpoints, artifacts or packages of jobs.",
                "make up",
                blocks=True,
            )
        elif state["versioned"] and state["versioning"] not in ("Enabled", "Unknown"):
            server = "let the S3 server keep versions, with a rule that removes them, then `make up`"
            yield Finding(
                f"The bucket {name} keeps no former versions of its objects.",
                "What is replaced or deleted by mistake is lost, and a backup may lack what its database names.",
                server if external else "make up",
            )
