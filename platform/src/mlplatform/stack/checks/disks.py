"""Disks that are full, or that Prometheus expects to be full within seven days."""

from __future__ import annotations

from collections.abc import Iterator

import httpx

from mlplatform.client.connection import Connection
from mlplatform.errors import UnreachableError
from mlplatform.settings.stack import LOOPBACK
from mlplatform.stack import env
from mlplatform.stack.checks.finding import Finding, Place

_DAYS = 7

_DISKS = {
    "Object storage": (
        "minio_cluster_capacity_usable_free_bytes",
        "remove checkpoints and data sets in MinIO's console",
    ),
    "A Ray node's disk": ("ray_node_disk_free", "make prune APPLY=1, then docker image prune"),
}
"""Metric of the free bytes, and the command or step that frees some."""


def full(place: Place) -> Iterator[Finding]:
    """Yield the disk for lack of which new jobs are rejected; none while the gateway does not run."""
    if not (place.root / "secrets" / "ray_token").is_file():
        return
    connection = Connection(env.client_settings(place.root))
    try:
        problem = connection.call("GET", "/platform/disks").json()["problem"]
    except UnreachableError:
        return  # `health` reports a service of ours that failed
    finally:
        connection.close()
    if problem:
        rejected, _, fix = problem.partition(". ")
        yield Finding(
            f"{rejected}.", "Uploads of checkpoints fail on a full disk, and jobs with them.", fix, blocks=True
        )


def forecast(place: Place) -> Iterator[Finding]:
    """Yield each disk that is full in seven days if it fills as in the last six hours; none without Prometheus.

    A disk that has been measured for less than an hour is left out: a start fills it faster than its use.
    """
    settings = place.settings
    password = place.root / "secrets" / "prometheus_password"
    if not password.is_file():
        return
    with httpx.Client(
        base_url=f"http://{LOOPBACK}:{settings.prometheus_port}",
        auth=("prometheus", password.read_text()),
        timeout=10,
        trust_env=False,
    ) as prometheus:
        for disk, (metric, fix) in _DISKS.items():
            query = f"min(predict_linear({metric}[6h], {_DAYS * 86400}) and {metric} offset 1h) < 0"
            try:
                answer = prometheus.get("/api/v1/query", params={"query": query})
            except httpx.TransportError:
                return  # it does not run
            if answer.is_success and answer.json()["data"]["result"]:
                yield Finding(
                    f"{disk} will be full within {_DAYS} days, if it fills as in the last six hours.",
                    "Uploads of checkpoints and artifacts fail on a full disk, and jobs with them.",
                    fix,
                )
