"""Differences between the clocks of this host, of Docker's engine and of the S3 server."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

from mlplatform.settings.stack import LOOPBACK
from mlplatform.stack.checks.finding import Finding, Place

_MOST_SECONDS = 10.0
"""The Date header has whole seconds, and answers take up to 4 s. S3 refuses signatures from 15 minutes on; metrics
of runs are wrong long before."""


def skew(place: Place) -> Iterator[Finding]:
    """Yield each clock that differs from this host's by more than 10 s; a clock that does not answer is left out."""
    settings = place.settings
    server = settings.s3_endpoint or f"http://{LOOPBACK}:{settings.s3_port}"
    yield from differing({"Docker's engine": _engine(), "the S3 server": of_server(server)})


def differing(clocks: Mapping[str, datetime | None], now: datetime | None = None) -> Iterator[Finding]:
    """Yield a finding for each clock that differs from `now`, by default this host's time."""
    now = now or datetime.now(UTC)
    for name, time in clocks.items():
        seconds = (time - now).total_seconds() if time else 0
        if abs(seconds) > _MOST_SECONDS:
            yield Finding(
                f"The clock of {name} differs from this host's by {seconds:+.0f} s.",
                "S3 refuses requests that differ by 15 minutes, and times of runs, logs and metrics do not match.",
                "sudo timedatectl set-ntp true",
            )


def of_server(address: str) -> datetime | None:
    """Return the time in a server's answer; None if nothing answers."""
    try:
        stamp = httpx.get(address, timeout=2).headers.get("date")
    except httpx.TransportError:
        return None
    return parsedate_to_datetime(stamp) if stamp else None


def _engine() -> datetime | None:
    if not shutil.which("docker"):
        return None
    command = ["docker", "info", "--format", "{{.SystemTime}}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=4)
    try:
        return datetime.fromisoformat(done.stdout.strip())
    except ValueError:
        return None
