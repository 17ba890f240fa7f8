"""Removal of what nobody needs any more: packages by default; checkpoints and runs once they are old, if it is set.

Each kind lists what it would remove now, and looks again before it removes one of them: meanwhile a job may need it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from anyio import to_thread

from mlplatform.client.mlflow_rest import RejectedError
from mlplatform.errors import PlatformError, StorageError
from mlplatform.storage import fence, run_reference
from mlplatform.storage.objects import Entry, ObjectStore
from mlplatform.text.throttle import ThrottledWarning
from mlplatform_gateway.jobs.store import JobStore, now
from mlplatform_gateway.mlflow.rest import AsyncMlflowRest
from mlplatform_gateway.packages.store import Packages

_PASS_SECONDS = 3600.0
_EXPIRED = "mlplatform/expired"

_CHECKED_FILES = 100
"""Files of a job that are removed before the gateway looks again whether the job is open."""

_KEPT_FILES = (fence.NAME, run_reference.NAME)
"""A few bytes per job: the fence still keeps an attempt that wakes up after years from writing."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Removable:
    """A package, or the data of a job, run or model, that is removed as a whole."""

    name: str
    files: int
    bytes: int


class Kind(Protocol):
    """Data of one kind. Both methods raise a PlatformError while a service is unavailable."""

    title: str
    on_request: bool
    """Removed by `make prune` only, not once per hour."""

    async def find(self) -> Sequence[Removable]:
        """Return what can be removed now."""

    async def remove(self, found: Removable) -> bool:
        """Remove it, unless it is needed again; return whether it was removed."""


class UnusedPackages:
    """Uploads of no job that is open or has ended within days, and that nobody has requested within a day."""

    title, on_request = "packages of old jobs", False

    def __init__(self, store: JobStore, packages: Packages) -> None:
        self._store = store
        self._packages = packages

    async def find(self) -> Sequence[Removable]:
        unused = await self._packages.unused(await self._store.packages())
        return [Removable(name, 1, size) for name, size in unused.items()]

    async def remove(self, found: Removable) -> bool:
        return found.name not in await self._store.packages() and await self._packages.delete(found.name)


class OldCheckpoints:
    """Checkpoints of jobs that ended some days ago, if nobody has written to the job's folder in `files` since."""

    title, on_request = "checkpoints of ended jobs", False

    def __init__(self, jobs: JobStore, files: ObjectStore, days: float) -> None:
        self._jobs = jobs
        self._files = files
        self._age = timedelta(days=days)

    async def find(self) -> Sequence[Removable]:
        ended, still_open = await self._jobs.ends()
        entries = await to_thread.run_sync(self._files.find, "")
        found = expired(entries, ended, still_open, now() - self._age)
        return [Removable(job, len(files), _size(files)) for job, files in sorted(found.items())]

    async def remove(self, found: Removable) -> bool:
        entries = await to_thread.run_sync(self._files.find, f"{found.name}/")
        ended, still_open = await self._jobs.ends()
        files = expired(entries, ended, still_open, now() - self._age).get(found.name, [])
        for position, entry in enumerate(files):
            # The id of a deleted job may be used again meanwhile.
            if position % _CHECKED_FILES == 0 and found.name in (await self._jobs.ends())[1]:
                return False
            await to_thread.run_sync(self._files.delete, entry.key)
        if files:
            await to_thread.run_sync(self._files.forget, f"{found.name}/")
        return bool(files)


class FormerCheckpoints:
    """Checkpoints that were dropped or deleted, as far as the storage keeps them until its own rule removes them."""

    title, on_request = "checkpoints that can still be recovered", True

    def __init__(self, files: ObjectStore) -> None:
        self._files = files

    async def find(self) -> Sequence[Removable]:
        folders: defaultdict[str, list[Entry]] = defaultdict(list)
        for entry in await to_thread.run_sync(self._files.former):
            job, _, rest = entry.key.partition("/")
            if rest:
                folders[job].append(entry)
        return [Removable(job, len(files), _size(files)) for job, files in sorted(folders.items())]

    async def remove(self, found: Removable) -> bool:
        await to_thread.run_sync(self._files.forget, f"{found.name}/")
        return True


class OldRuns:
    """Runs and logged models that were deleted in MLflow some days ago, with their artifacts; MLflow selects them.

    Only the stack's own MLflow has the route for that (`compat.mlflow_retention`).
    """

    title, on_request = "deleted runs in MLflow", False

    def __init__(self, client: AsyncMlflowRest, days: float) -> None:
        self._client = client
        self._days = days

    async def find(self) -> Sequence[Removable]:
        found: list[Removable] = []
        after = ""
        while page := (await self._call("GET", after=after))["expired"]:
            removable = [one for one in page if one["removable"]]
            found += [Removable(str(one["id"]), int(one["files"]), int(one["bytes"])) for one in removable]
            after = page[-1]["id"]
        return found

    async def remove(self, found: Removable) -> bool:
        return bool((await self._call("POST", id=found.name))["removed"])

    async def _call(self, method: str, **values: Any) -> dict[str, Any]:
        try:
            return await self._client.call(method, _EXPIRED, {"days": self._days, **values})
        except RejectedError as error:
            raise StorageError(
                f"{error}; RUNS_KEEP_DAYS is for the stack's own MLflow only, leave it empty."
            ) from error


class Retention:
    """All kinds, removed once per hour."""

    def __init__(self, kinds: Sequence[Kind]) -> None:
        self._kinds = kinds
        self._removing = asyncio.Lock()
        self._warn = ThrottledWarning(_log)

    async def run(self) -> None:
        """Remove what can be removed, once per hour; never returns."""
        while True:
            # The first pass is late too: clients may be about to submit jobs with packages that they have looked for.
            await asyncio.sleep(_PASS_SECONDS)
            for kind in self._kinds:
                if not kind.on_request:
                    await self._remove_all(kind)

    async def plan(self) -> list[tuple[str, Sequence[Removable]]]:
        """Return what `apply` would remove now, by the title of its kind."""
        return [(kind.title, await kind.find()) for kind in self._kinds]

    async def apply(self) -> AsyncIterator[tuple[str, Removable]]:
        """Remove what can be removed now; yield each with the title of its kind."""
        async with self._removing:
            for kind in self._kinds:
                for found in await kind.find():
                    if await kind.remove(found):
                        yield kind.title, found

    async def _remove_all(self, kind: Kind) -> None:
        try:
            async with self._removing:
                removed = [found for found in await kind.find() if await kind.remove(found)]
        except PlatformError as error:
            self._warn("Nothing of the kind '%s' could be removed: %s", kind.title, error)
        except Exception:
            _log.exception("Removing the kind '%s' failed and is repeated in an hour.", kind.title)
        else:
            if removed:
                freed = sum(found.bytes for found in removed) / 10**6
                _log.info("Removed %d of the kind '%s': %.1f MB.", len(removed), kind.title, freed)


def expired(
    entries: Iterable[Entry], ended: Mapping[str, datetime], still_open: Collection[str], before: datetime
) -> dict[str, list[Entry]]:
    """Return the files that can be removed, by job: those of jobs that ended before a moment and are unchanged since.

    Args:
        entries: files of the storage, under keys `<job id>/...`. Folders of notebooks, and of nobody, are kept.
        ended: the last end of each job, deleted ones included.
        still_open: ids of the jobs that have not ended; one may have the id of a deleted job.
        before: the moment.
    """
    folders: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        job, _, rest = entry.key.partition("/")
        if rest and rest not in _KEPT_FILES and job in ended and job not in still_open and ended[job] < before:
            folders[job].append(entry)
    return {job: files for job, files in folders.items() if max(file.modified for file in files) < before}


def _size(files: Iterable[Entry]) -> int:
    return sum(file.size for file in files)
