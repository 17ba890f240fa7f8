"""Selection and removal of what nobody needs any more, with SQLite and folders."""

import asyncio
import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from stored import database_in, do, submitted
from waiting import until

from mlplatform.client.mlflow_rest import Account
from mlplatform.errors import StorageError
from mlplatform.storage.objects import Entry, open_store
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.jobs.store import JobStore
from mlplatform_gateway.mlflow.rest import AsyncMlflowRest
from mlplatform_gateway.packages.store import Packages
from mlplatform_gateway.retention.loop import (
    FormerCheckpoints,
    OldCheckpoints,
    OldRuns,
    Removable,
    Retention,
    UnusedPackages,
    expired,
)

NOW = datetime(2026, 11, 25, tzinfo=UTC)
OLD, NEW = NOW - timedelta(days=40), NOW - timedelta(days=2)
BEFORE = NOW - timedelta(days=30)
DAY = 86_400.0


def entry(key: str, modified: datetime = OLD) -> Entry:
    return Entry(key, 5, modified)


@pytest.mark.parametrize(
    ("files", "still_open", "removed"),
    [
        (["old/fit/checkpoint_1/model.pt", "old/fit/snapshot.json"], set(), [0, 1]),
        (["new/fit/model.pt", "ada-20260101-1/fit/x", "loose", "oldest/x"], set(), []),
        (["old/fit/x"], {"old"}, []),
        (["old/attempt", "old/.mlflow-run", "old/fit/attempt"], set(), [2]),
    ],
    ids=["ended long ago", "no such job, or ended lately", "another job with its id is open", "fence and run"],
)
def test_checkpoints_of_long_ended_jobs_expire(files: list[str], still_open: set[str], removed: list[int]) -> None:
    entries = [entry(key) for key in files]
    found = expired(entries, {"old": OLD, "new": NEW}, still_open, BEFORE)
    assert found == ({"old": [entries[index] for index in removed]} if removed else {})


def test_folder_that_somebody_writes_to_is_kept() -> None:
    assert expired([entry("old/fit/x"), entry("old/fit/y", NEW)], {"old": OLD}, set(), BEFORE) == {}


class Place:
    """A store of jobs, a folder of checkpoints and one of packages."""

    def __init__(self, folder: Path) -> None:
        self.storage, self.files = folder / "storage", folder / "files"
        self.store = JobStore(database_in(folder))
        self.packages = Packages(str(self.files), 1000, folder)
        checkpoints = OldCheckpoints(self.store, open_store(str(self.storage)), 30)
        self.retention = Retention([UnusedPackages(self.store, self.packages), checkpoints])

    def add(self, job_id: str, days: float | None = None) -> None:
        """Add a job with a package and a checkpoint; it has ended some days ago, or is open."""
        package = {"working_dir": f"gcs://{job_id}.zip"}
        do(self.store.add(submitted(submission_id=job_id, runtime_env=package)))
        if days is not None:
            do(self.store.request_stop(job_id))
            with self.store.engine.begin() as connection:
                ended = datetime.now(UTC) - timedelta(days=days)
                connection.execute(update(JobRow).where(JobRow.id == job_id).values(ended=ended))
        for path in (self.files / "packages" / f"{job_id}.zip", self.storage / job_id / "fit" / "model.pt"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("12345")
            os.utime(path, (0, time.time() - 60 * DAY))

    def left(self) -> list[str]:
        return sorted(path.name for path in (self.files / "packages").iterdir()) + sorted(
            path.parts[-3] for path in self.storage.rglob("model.pt")
        )

    def plan(self) -> dict[str, list[Removable]]:
        return {title: list(found) for title, found in do(self.retention.plan())}

    def apply(self) -> dict[str, list[Removable]]:
        async def collect() -> dict[str, list[Removable]]:
            removed: dict[str, list[Removable]] = {title: [] for title, _ in await self.retention.plan()}
            async for title, found in self.retention.apply():
                removed[title].append(found)
            return removed

        return do(collect())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    for job_id, days in (("old", 40), ("new", 20), ("open", None)):
        made.add(job_id, days)
    return made


def test_plan_is_what_is_removed(place: Place) -> None:
    planned = place.plan()
    assert planned == {
        UnusedPackages.title: [Removable("new.zip", 1, 5), Removable("old.zip", 1, 5)],
        OldCheckpoints.title: [Removable("old", 1, 5)],
    }
    assert place.left() == ["new.zip", "old.zip", "open.zip", "new", "old", "open"]
    assert place.apply() == planned
    assert place.left() == ["open.zip", "new", "open"]
    assert not any(place.plan().values())


def test_what_is_needed_since_plan_is_kept(place: Place) -> None:
    kinds = (
        UnusedPackages(place.store, place.packages),
        OldCheckpoints(place.store, open_store(str(place.storage)), 30),
    )
    found = [(kind, one) for kind in kinds for one in do(kind.find())]
    assert len(found) == 3
    # The old job is deleted, and another one with its id and package is submitted.
    do(place.store.delete("old"))
    place.add("old")
    assert do(place.packages.exists("new.zip"))
    assert [do(kind.remove(one)) for kind, one in found] == [False, False, False]
    assert place.left() == ["new.zip", "old.zip", "open.zip", "new", "old", "open"]


async def test_failing_kind_does_not_keep_others_from_removal(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing:
        title, on_request = "failing", False

        async def find(self) -> list[Removable]:
            raise StorageError("The bucket is gone.")

        async def remove(self, found: Removable) -> bool:
            return False

    monkeypatch.setattr("mlplatform_gateway.retention.loop._PASS_SECONDS", 0.05)
    retention = Retention([Failing(), UnusedPackages(place.store, place.packages)])
    task = asyncio.create_task(retention.run())
    await until(lambda: "old.zip" not in place.left())
    task.cancel()
    assert "The bucket is gone." in caplog.text


async def test_former_checkpoints_are_removed_on_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Storage:
        def __init__(self) -> None:
            self.kept = {"a/fit/1": 5, "a/fit/2": 7, "b/fit/1": 1, ".probe-1": 0}

        def former(self) -> list[Entry]:
            return [Entry(key, size, OLD) for key, size in self.kept.items()]

        def forget(self, prefix: str) -> None:
            self.kept = {key: size for key, size in self.kept.items() if not key.startswith(prefix)}

    monkeypatch.setattr("mlplatform_gateway.retention.loop._PASS_SECONDS", 0.02)
    storage: Any = Storage()
    retention = Retention([FormerCheckpoints(storage)])
    task = asyncio.create_task(retention.run())
    await asyncio.sleep(0.2)
    assert len(storage.kept) == 4
    task.cancel()
    assert [found async for _, found in retention.apply()] == [Removable("a", 2, 12), Removable("b", 1, 1)]
    assert list(storage.kept) == [".probe-1"]


async def test_deleted_runs_are_read_page_by_page_and_removed(serve: Callable[..., str]) -> None:
    pages = {"": ["a", "b"], "b": ["c"], "c": []}

    def answer(method: str, path: str) -> tuple[int, str]:
        if method == "POST":
            return 200, json.dumps({"removed": True})
        assert "days=30" in path
        after = path.partition("after=")[2].partition("&")[0]
        page = [{"id": one, "files": 1, "bytes": 2, "removable": one != "b"} for one in pages[after]]
        return 200, json.dumps({"expired": page})

    async with AsyncMlflowRest(serve(answer), Account()) as client:
        runs = OldRuns(client, 30)
        assert await runs.find() == [Removable("a", 1, 2), Removable("c", 1, 2)]
        assert await runs.remove(Removable("a", 1, 2))


async def test_server_without_route_is_named(serve: Callable[..., str]) -> None:
    address = serve(lambda method, path: (404, json.dumps({"error_code": "NOT_FOUND", "message": "No such path"})))
    async with AsyncMlflowRest(address, Account()) as client:
        with pytest.raises(StorageError, match="RUNS_KEEP_DAYS is for the stack's own MLflow only"):
            await OldRuns(client, 30).find()
