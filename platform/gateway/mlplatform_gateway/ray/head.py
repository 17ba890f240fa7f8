"""Client of Ray's head for the gateway: its Jobs API, and its lists of nodes, actors and pending requests.

Paths and responses are those of `ray/dashboard/modules/job/job_head.py` and of the state API in Ray 2.60.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx

from mlplatform.capacity.resources import Node
from mlplatform.client.certificates import verification
from mlplatform.errors import UnreachableError
from mlplatform_gateway.errors import REJECTS, NoShellError, RefusedError
from mlplatform_gateway.ray import listings

_TIMEOUT = httpx.Timeout(20.0, connect=3.0)
_UPLOAD_TIMEOUT = httpx.Timeout(300.0, connect=3.0)

_HEALTH_TIMEOUTS = (1.5, 5.0)
"""Seconds for each of two health checks: with 186 jobs on two busy cores, the live node of one missed the first."""

_MAX_ROWS = 10_000
"""Maximum number of rows that Ray's state API lists."""

_TOO_LARGE = ("Maximum request body size", "exceeds the maximum size")

_REFUSALS = ("status code 400", *_TOO_LARGE)
"""The head answers 500 if its agent answered 400, or if a request is too large for either."""


@dataclass(frozen=True)
class ClusterSnapshot:
    """Jobs and nodes as Ray lists them at one moment."""

    jobs: Mapping[str, dict[str, Any]]
    """Details of submitted jobs by Ray's submission id."""

    drivers: Sequence[dict[str, Any]]
    """Programs that have connected directly, from a notebook for instance."""

    names: Mapping[str, str]
    """Host names by node id."""

    alive: frozenset[str]
    """Ids of nodes that Ray lists as alive."""

    dead: Mapping[str, datetime]
    """Times of death by id of the nodes that Ray lists as dead."""

    nodes: Sequence[Node]
    """Nodes that are alive or were seen recently."""


class RayHead:
    """Client of the head. Every method raises UnreachableError while it does not answer.

    Args:
        address: URL of the dashboard.
        agent_address: URL of the agent on the head's node.
        auth: adds the token to each request; None without authentication.
    """

    def __init__(
        self, address: str, agent_address: str, auth: Callable[[httpx.Request], httpx.Request] | None = None
    ) -> None:
        self.address = address
        self._agent = agent_address
        self._auth = auth
        self._http = httpx.AsyncClient(
            base_url=address, auth=auth, timeout=_TIMEOUT, trust_env=False, verify=verification(address, agent_address)
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def look(self) -> ClusterSnapshot:
        """List jobs and nodes, requested at the same time."""
        jobs, states, summary = await asyncio.gather(
            self._json("/api/jobs/"), self._listed("nodes"), self._json("/nodes", view="summary")
        )
        return ClusterSnapshot(
            jobs={job["submission_id"]: job for job in jobs if job["type"] == "SUBMISSION"},
            drivers=[job for job in jobs if job["type"] != "SUBMISSION"],
            names=listings.host_names(states, summary["data"]),
            alive=frozenset(node["node_id"] for node in states if node["state"] == "ALIVE"),
            dead={node["node_id"]: _death(node) for node in states if node["state"] == "DEAD"},
            nodes=listings.nodes_in(states, summary["data"], time.time()),
        )

    async def version(self) -> dict[str, Any]:
        """Return the versions of Ray and of its API."""
        versions: dict[str, Any] = await self._json("/api/version")
        return versions

    async def submit(self, request: Mapping[str, Any]) -> None:
        """Submit a job; the same id again does nothing.

        Raises:
            RefusedError: Ray rejects the request.
        """
        answer = await self._send("POST", "/api/jobs/", json=dict(request))
        if answer.status_code == 200 or "already exists" in answer.text:
            return
        if answer.status_code in (400, 413) or any(sign in answer.text for sign in _REFUSALS):
            raise RefusedError(f"{REJECTS}: {_last_line(answer)}")
        _checked(answer)

    async def has_supervisor(self, ray_submission_id: str) -> bool:
        """Return whether an actor that runs a submitted job is alive or being created."""
        # JOB_ACTOR_NAME_TEMPLATE of ray.dashboard.modules.job.common
        name = f"_ray_internal_job_actor_{ray_submission_id}"
        return any(actor["state"] != "DEAD" for actor in await self._listed("actors", name=name))

    async def living_actors(self) -> list[dict[str, Any]]:
        """Return Ray's details of the actors that are alive, with the resources that each holds."""
        return await self._listed("actors", state="ALIVE")

    async def node_details(self, node_id: str) -> dict[str, Any]:
        """Return what a node's agent measures of the node, its GPUs and Ray's processes; partly empty at first."""
        detail: dict[str, Any] = (await self._json(f"/nodes/{node_id}"))["data"]["detail"]
        return detail

    async def pending_shapes(self) -> list[list[dict[str, float]]]:
        """Return the distinct shapes of pending requests, each as the resources of its bundles.

        Ray's autoscaler counts them every 5 s. This takes 6 ms; `pending_requests` takes 2 s with 10,000 waiting tasks.
        """
        report = ((await self._json("/api/cluster_status"))["data"]["clusterStatus"] or {}).get("loadMetricsReport", {})
        return [
            *([shape] for shape, _ in report.get("resourceDemand") or []),
            *(
                [bundle for bundle, count in demand["bundles"] for _ in range(count)]
                for demand, _ in report.get("pgDemand") or []
            ),
        ]

    async def pending_requests(self) -> list[tuple[str, list[dict[str, float]]]]:
        """Return the pending requests with Ray's id of the job that made each.

        Actors and Ray Train's workers are among the pending tasks and placement groups.
        """
        groups, tasks = await asyncio.gather(
            self._listed("placement_groups"), self._listed("tasks", state="PENDING_NODE_ASSIGNMENT")
        )
        return [
            *(
                (group["creator_job_id"], [bundle["unit_resources"] for bundle in group["bundles"]])
                for group in groups
                if group["state"] in ("PENDING", "RESCHEDULING")
            ),
            *((task["job_id"], [task["required_resources"]]) for task in tasks if not task["placement_group_id"]),
        ]

    async def stop(self, ray_submission_id: str) -> None:
        """Stop an attempt; do nothing if Ray does not know it."""
        answer = await self._send("POST", f"/api/jobs/{ray_submission_id}/stop")
        if answer.status_code != 404:
            _checked(answer)

    async def delete(self, ray_submission_id: str) -> bool:
        """Delete Ray's record of an ended attempt; return False if Ray does not do so yet."""
        answer = await self._send("DELETE", f"/api/jobs/{ray_submission_id}")
        return answer.status_code in (200, 404)

    async def has_package(self, name: str) -> bool:
        """Return whether Ray has a package; if so, Ray keeps it for the next minutes."""
        answer = await self._send("GET", f"/api/packages/gcs/{name}")
        if answer.status_code == 404:
            return False
        _checked(answer)
        return True

    async def put_package(self, name: str, size: int, content: AsyncIterator[bytes]) -> None:
        """Upload a package of `size` bytes to Ray.

        Raises:
            RefusedError: the package is too large for Ray.
        """
        headers = {"Content-Length": str(size)}
        path = f"/api/packages/gcs/{name}"
        answer = await self._send("PUT", path, content=content, headers=headers, timeout=_UPLOAD_TIMEOUT)
        if answer.status_code == 413 or any(sign in answer.text for sign in _TOO_LARGE):
            raise RefusedError(
                f"Package gcs://{name} of {size >> 20} MiB is too large for Ray; submit the job without it."
            )
        _checked(answer)

    async def start_job_manager(self) -> None:
        """Start the job manager of the head's node.

        A node's job manager starts with its first request. Until then, a restarted head lists a job whose driver is
        gone as RUNNING.
        """
        await self._send("GET", f"{self._agent}/api/job_agent/jobs/none/logs")

    async def node_answers(self, agent: str) -> bool:
        """Return whether the raylet behind an agent's address is healthy; ask a slow raylet a second time."""
        for seconds in _HEALTH_TIMEOUTS:
            with suppress(UnreachableError):
                answer = await self._send("GET", f"{agent}/api/local_raylet_healthz", timeout=seconds)
                if answer.is_success:
                    return True
        return False

    async def training_worker(self, ray_job_id: str, rank: int) -> dict[str, Any] | None:
        """Return Ray's details of a worker of a job's latest training; None if no training that runs has this rank."""
        runs = (await self._json("/api/train/v2/runs/v1"))["train_runs"]
        attempts = (attempt for run in runs if run["job_id"] == ray_job_id for attempt in reversed(run["attempts"]))
        workers = (worker for attempt in attempts if attempt["status"] == "RUNNING" for worker in attempt["workers"])
        return next((worker for worker in workers if worker["world_rank"] == rank), None)

    @asynccontextmanager
    async def upgraded(self, agent: str, path: str, **params: str) -> AsyncIterator[Any]:
        """Yield the connection, a network stream of httpx, that an agent makes of a request.

        Args:
            agent: address of the agent.

        Raises:
            NoShellError: it refuses; with its text.
        """
        headers = {"Connection": "upgrade", "Upgrade": "ssh"}
        client = httpx.AsyncClient(auth=self._auth, timeout=_TIMEOUT, trust_env=False, verify=verification(agent))
        try:
            async with client, client.stream("GET", f"{agent}{path}", params=params, headers=headers) as answer:
                if answer.status_code != httpx.codes.SWITCHING_PROTOCOLS:
                    await answer.aread()
                    raise NoShellError(_last_line(answer))
                yield answer.extensions["network_stream"]
        except httpx.TransportError as error:
            raise UnreachableError(
                f"The node's agent at {agent} does not answer ({error or type(error).__name__})."
            ) from error

    async def _listed(self, kind: str, **equal: str) -> list[dict[str, Any]]:
        """List rows of Ray's state API, those with the given values."""
        filters = {
            "filter_keys": list(equal),
            "filter_predicates": ["="] * len(equal),
            "filter_values": list(equal.values()),
        }
        listed = await self._json(f"/api/v0/{kind}", detail=1, limit=_MAX_ROWS, **filters)
        rows: list[dict[str, Any]] = listed["data"]["result"]["result"]
        return rows

    async def _json(self, path: str, **params: Any) -> Any:
        return _checked(await self._send("GET", path, params=params)).json()

    async def _send(self, method: str, url: str, **options: Any) -> httpx.Response:
        try:
            return await self._http.request(method, url, **options)
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            raise UnreachableError(f"Ray's head at {self.address} does not answer ({reason}).") from error


def _death(node: Mapping[str, Any]) -> datetime:
    return datetime.fromtimestamp(node["end_time_ms"] / 1000, UTC)


def _checked(answer: httpx.Response) -> httpx.Response:
    """Raise UnreachableError for an error: a starting head answers 404 or 500 until it has loaded its state."""
    if not answer.is_success:
        raise UnreachableError(f"Ray's head answers {answer.status_code}: {_last_line(answer)}")
    return answer


def _last_line(answer: httpx.Response) -> str:
    return (answer.text.strip().splitlines() or [""])[-1][:500]
