"""Nodes and their resources, parsed from the listings of Ray's dashboard."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlplatform.capacity.resources import Node, subtract
from mlplatform.contract import ATTEMPT_ID

SEEN_LATELY_SECONDS = 600
"""A node that was lost more recently counts: it may only be restarting."""

_USED = re.compile(r"^([\d.]+)/[\d.]+ (\S+)", re.MULTILINE)

_IN_GROUP = re.compile(r"_group(_\d+)?_[0-9a-f]{36}$")


def host_names(shapes: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> dict[str, str]:
    """Return host names by node id, from the listings that `nodes_in` reads.

    The summary has a new node only after seconds, in which a short job may have run on it and ended. Until then, a node
    has the name with which it was started, which is its host's on the stack. By default that name is its address.
    """
    named = {shape["node_id"]: shape["node_name"] for shape in shapes if shape["node_name"] != shape["node_ip"]}
    return named | _hosts(summary)


def nodes_in(shapes: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], now: float) -> list[Node]:
    """Read the nodes that count from two of the dashboard's listings.

    Args:
        shapes: `/api/v0/nodes?detail=1`, which keeps the shape of a node that was lost.
        summary: `/nodes?view=summary`, which has host names and, a few seconds late, the resources in use.
        now: seconds since 1970.

    Returns:
        Nodes alive, and those lost within the last ten minutes that no later one has replaced.
    """
    hosts = _hosts(summary)
    used = summary.get("nodeLogicalResources") or {}
    counted = []
    for shape in shapes:
        name = hosts.get(shape["node_id"]) or shape["node_name"]
        alive = shape["state"] == "ALIVE"
        lost_lately = now - shape["end_time_ms"] / 1000 < SEEN_LATELY_SECONDS
        if alive or (lost_lately and not _replaced(shape, name, shapes, hosts)):
            total = {key: float(value) for key, value in shape["resources_total"].items()}
            free = subtract(total, _used(used.get(shape["node_id"], "")))
            counted.append(Node(name, alive, total, free, shape["labels"] or {}))
    return sorted(counted, key=lambda node: node.name)


def _hosts(summary: Mapping[str, Any]) -> dict[str, str]:
    nodes = [node for node in summary["summary"] if node.get("raylet")]
    return {node["raylet"]["nodeId"]: node["hostname"] for node in nodes if node.get("hostname")}


@dataclass(frozen=True)
class Holding:
    """Resources that a job holds on a node."""

    job_id: str
    node: str
    amounts: Mapping[str, float]


def users_of(
    asked: Iterable[str], actors: Iterable[Mapping[str, Any]], jobs: Iterable[Mapping[str, Any]]
) -> tuple[str, ...]:
    """Return the ids of the jobs whose living actors hold some of the resources.

    Args:
        asked: names of resources.
        actors: `/api/v0/actors?detail=1`.
        jobs: the submitted jobs in the listing of the head's Jobs API; the id of an attempt stands for its job's.
    """
    wanted = set(asked)
    return tuple(sorted({held.job_id for held in holdings_in(actors, jobs, {}) if wanted.intersection(held.amounts)}))


def holdings_in(
    actors: Iterable[Mapping[str, Any]], jobs: Iterable[Mapping[str, Any]], names: Mapping[str, str]
) -> list[Holding]:
    """Return what the living actors of submitted jobs, as of `users_of`, hold: one entry per job and named node."""
    submitted = job_ids(jobs)
    sums: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for actor in actors:
        supervisor = actor["class_name"] == "JobSupervisor"
        owner = supervised_job(actor["name"] or "") if supervisor else submitted.get(actor["job_id"])
        amounts = _amounts(actor["required_resources"] or {})
        node_id = actor.get("node_id") or ""
        if owner:
            held = sums[owner, names.get(node_id, node_id)]
            for resource, value in amounts.items():
                held[resource] += value
    return [Holding(job_id, node, dict(amounts)) for (job_id, node), amounts in sorted(sums.items())]


def job_ids(jobs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the ids of submitted jobs by Ray's ids of their drivers, from the listing of the head's Jobs API."""
    return {
        job["job_id"]: ATTEMPT_ID.sub("", job["submission_id"])
        for job in jobs
        if job["submission_id"] and job["job_id"]
    }


def supervised_job(actor: str) -> str:
    """Return the id of the job whose entry point an actor of this name runs; empty if it is another actor.

    That actor belongs to Ray's own job (JOB_ACTOR_NAME_TEMPLATE of ray.dashboard.modules.job.common).
    """
    _, _, entry = actor.rpartition("_ray_internal_job_actor_")
    return ATTEMPT_ID.sub("", entry) if entry != actor else ""


def _amounts(required: Mapping[str, float]) -> dict[str, float]:
    """Return amounts by resource; in a placement group, Ray lists each twice, for the group and for the bundle."""
    amounts: dict[str, float] = {}
    for name, value in required.items():
        resource = _IN_GROUP.sub("", name)
        if value and resource != "bundle":
            amounts[resource] = max(value, amounts.get(resource, 0))
    return amounts


def _replaced(
    lost: Mapping[str, Any], name: str, shapes: Iterable[Mapping[str, Any]], hosts: Mapping[str, str | None]
) -> bool:
    """Return whether a node of the same host has started after it."""
    return any(
        shape["start_time_ms"] > lost["start_time_ms"]
        and (shape["node_ip"] == lost["node_ip"] or (hosts.get(shape["node_id"]) or shape["node_name"]) == name)
        for shape in shapes
    )


def _used(lines: str) -> dict[str, float]:
    """Read `1.0/4.0 CPU (1.0 used of 1.0 reserved in placement groups)`; memory, in other units, is omitted."""
    return {name: float(value) for value, name in _USED.findall(lines)}
