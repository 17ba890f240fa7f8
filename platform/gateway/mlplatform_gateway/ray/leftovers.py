"""Detached actors of ended jobs: they would hold their CPUs and GPUs until somebody looks for them."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mlplatform.compat import ray_actors
from mlplatform.errors import UnreachableError
from mlplatform_gateway.ray.head import ClusterSnapshot, RayHead

PREFIX = "mlplatform-end-actors-"
"""Start of the submission ids of the jobs that end actors."""

_FINAL = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
_KEPT = ray_actors.SHARED | {ray_actors.CLEANER}
_GATHER_SECONDS = 1.0
_LOOK_AGAIN_SECONDS = 5.0

_MAX_ACTORS = 500
"""Actors that one job ends; their ids are on its command line."""

_MAX_TRIES = 3
"""Jobs that try to end the same actor."""

_log = logging.getLogger(__name__)


class LeftoverActors:
    """Background work. `look` is one pass, to be repeated.

    Actors of programs that connect directly, from a notebook for instance, are left alone: such a program may end
    between two cells.

    Args:
        driver_labels: labels of the nodes that run entry points.
    """

    def __init__(self, head: RayHead, driver_labels: Mapping[str, str]) -> None:
        self._head = head
        self._driver_labels = driver_labels
        self._tries: Counter[str] = Counter()
        self._some_ended = asyncio.Event()
        self._some_ended.set()

    def notice_end(self) -> None:
        """Start the next pass now, because an attempt or a job has ended."""
        self._some_ended.set()

    async def look(self) -> None:
        """Wait for an end, then end the detached actors of all ended jobs.

        Raises:
            UnreachableError: Ray's head is unavailable.
        """
        await self._some_ended.wait()
        await asyncio.sleep(_GATHER_SECONDS)
        self._some_ended.clear()
        try:
            await self._end_all()
        except UnreachableError:
            self._some_ended.set()
            raise

    async def _end_all(self) -> None:
        # The listing of jobs is the later one: a job that it lists as ended creates no more actors.
        actors = await self._head.living_actors()
        cluster = await self._head.look()
        working = await self._forget_own(cluster)
        found = {actor["actor_id"]: actor["class_name"] for actor in leftover(actors, cluster.jobs)}
        self._tries = Counter({actor_id: self._tries[actor_id] for actor_id in found})
        chosen = [actor_id for actor_id in found if self._tries[actor_id] < _MAX_TRIES][:_MAX_ACTORS]
        if chosen and not working:
            for actor_id in chosen:
                _log.warning("Actor %s of class %s outlived its job and will be ended.", actor_id, found[actor_id])
            await self._head.submit(self._request(chosen))
            self._tries.update(chosen)
        if chosen or working:
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
            self._some_ended.set()

    async def _forget_own(self, cluster: ClusterSnapshot) -> bool:
        """Delete Ray's records of our ended jobs; return whether one has not ended."""
        own = {name: job["status"] for name, job in cluster.jobs.items() if name.startswith(PREFIX)}
        for name, status in own.items():
            if status in _FINAL:
                await self._head.delete(name)
        return any(status not in _FINAL for status in own.values())

    def _request(self, actor_ids: Sequence[str]) -> dict[str, Any]:
        """Body of a submission to Ray's Jobs API."""
        return {
            "entrypoint": f"python -m {ray_actors.__name__} {' '.join(actor_ids)}",
            "submission_id": f"{PREFIX}{uuid.uuid4().hex}",
            "runtime_env": {"env_vars": {"RAY_LOG_TO_DRIVER": "0"}},
            "entrypoint_label_selector": dict(self._driver_labels),
        }


def leftover(actors: Sequence[Mapping[str, Any]], jobs: Mapping[str, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the detached actors of jobs that have ended, without those that Ray's libraries share between jobs.

    Args:
        actors: as the state API lists them.
        jobs: Ray's details of submitted jobs, by submission id; of the same head, because Ray's numbers of jobs begin
            again with each start.
    """
    ended = {job["job_id"] for job in jobs.values() if job["status"] in _FINAL and job["job_id"]}
    return [
        actor
        for actor in actors
        if actor["is_detached"] and actor["job_id"] in ended and actor["class_name"] not in _KEPT
    ]
