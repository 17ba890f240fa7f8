"""Mapping of a node's log files to the jobs that they belong to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from mlplatform_gateway.errors import UnknownJobError
from mlplatform_gateway.logs.lines import NO_JOB, LogName, job_in

_CACHED = 10_000


Resolve = Callable[[str | None, str | None], Awaitable[str | None]]
"""Returns the id of the job of a driver (by Ray's submission id) or a worker (by Ray's job id), if it is known."""


class Owners:
    """Cache of the jobs of log files."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._job_ids: dict[str, str] = {}
        self._named: dict[tuple[str, str, str], str] = {}
        """Ray's job id that a worker's log names in its first line, by node, session and file."""

    async def job_id(self, node: str, session: str, name: LogName, offset: int, body: bytes) -> str:
        """Return the id of the job of a file, given bytes of it from `offset` on.

        Raises:
            UnknownJobError, JobGoneError: no job is known for the file, or the job was deleted.
        """
        ray_job = name.ray_job
        if ray_job == NO_JOB:
            file = (node, session, name.file)
            named = (job_in(body) if offset == 0 else None) or self._named.get(file)
            if named is None:
                raise UnknownJobError(f"{name.file!r} has not named its job; try again later, with its beginning.")
            _remember(self._named, file, ray_job := named)
        key = name.ray_id or f"{session}/{ray_job}"
        if key not in self._job_ids:
            job_id = await self._resolve(name.ray_id, ray_job)
            if job_id is None:
                raise UnknownJobError(f"No job is known for {name.file!r}; try again later.")
            _remember(self._job_ids, key, job_id)
        return self._job_ids[key]

    def forget_number(self, session: str, ray_job: str) -> None:
        """Forget the job of one of Ray's job ids in a session."""
        self._job_ids.pop(f"{session}/{ray_job}", None)

    def forget(self, job_id: str) -> None:
        """Forget which files belong to a job."""
        self._job_ids = {key: known for key, known in self._job_ids.items() if known != job_id}


def _remember(known: dict[Any, str], key: Any, value: str) -> None:
    """Add to a cache; a full one is cleared, because every entry can be looked up again."""
    if len(known) >= _CACHED:
        known.clear()
    known[key] = value
