"""Data sets by name and digest, so that a run's training data can be identified and fetched again.

<MLPLATFORM_DATASETS>/<name>/<digest>/...             the files as they were uploaded
<MLPLATFORM_DATASETS>/.manifests/<name>/<digest>      checksums; written last, so that half an upload is invisible
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mlplatform.errors import AccessError, StorageError
from mlplatform.files import atomic, checksums, progress
from mlplatform.files.checksums import Sums
from mlplatform.files.progress import Counter
from mlplatform.settings.job import settings
from mlplatform.storage.objects import Entry, ObjectStore, open_store
from mlplatform.tracking import server

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

_MANIFESTS = ".manifests"

_SHORTEST_PREFIX = 6


@dataclass(frozen=True)
class Dataset:
    """Files under a name, as they were when `put` uploaded them."""

    name: str
    digest: str
    """Digest over names and contents, 32 hexadecimal characters; the same files have the same one everywhere."""

    uri: str
    """Folder or `s3://` address of the files, for Ray Data, pyarrow and other libraries that read in place."""

    size: int
    """Size of all files together, in bytes."""

    user: str
    """User who uploaded it."""

    modified: datetime
    """Time of the last `put`; the bare name stands for the latest version."""

    sums: Mapping[str, str] = field(repr=False)
    """Path below the folder -> SHA-256."""

    def download(self, folder: Path | str) -> Path:
        """Download the files into a new or empty folder and verify each; nothing is transferred if they are there.

        Several processes, such as the ranks on a node, may call this for the same folder at once: one downloads.

        Returns:
            The folder's absolute path.

        Raises:
            StorageError: the folder holds other files, or a file differs from the uploaded one.
            UnreachableError: the storage does not answer.
            AccessError: the storage rejected the account.
        """
        destination = Path(folder).absolute()
        store = _store()
        with atomic.alone(destination):
            if checksums.holds(destination, self.sums):
                return destination
            with atomic.new_folder(destination) as draft:
                for path in self.sums:
                    (draft / path).parent.mkdir(parents=True, exist_ok=True)
                tasks = [partial(self._fetch, store, draft, path) for path in self.sums]
                progress.run(f"Downloading {self.name}@{self.digest[:12]}", self.size, tasks)
        return destination

    def _fetch(self, store: ObjectStore, folder: Path, path: str, moved: Counter) -> None:
        try:
            store.download(f"{self.name}/{self.digest}/{path}", folder / path, moved.add)
        except StorageError as error:
            raise StorageError(f"The file {path} in {self.uri} cannot be read; upload the data set again.") from error
        if checksums.sha256(folder / path) != self.sums[path]:
            raise StorageError(
                f"The file {path} in {self.uri} does not have the checksum that was recorded; delete it there and "
                "upload the data set again."
            )


def dataset(name: str) -> Dataset:
    """Return a data set and record it, by name and digest, as an input of the run.

    The run is the active one, or else that of the job that this process belongs to.

    Args:
        name: `name` for the latest version, or `name@digest`; six characters of the digest are enough.

    Raises:
        StorageError: there is no such data set; the message lists the existing ones.
    """
    found = find(name)
    _record(found)
    return found


def find(name: str) -> Dataset:
    """Return a data set by `name` or `name@digest`, without recording it.

    Raises:
        StorageError: there is no such data set; the message lists the existing ones.
    """
    store = _store()
    bare, _, prefix = name.partition("@")
    _check_name(bare)
    found = [entry for entry in _manifests(store, bare) if _digest_of(entry).startswith(prefix)]
    if not found:
        raise StorageError(f"There is no data set {name!r}; there {_known(store, bare)}.")
    if prefix and len(prefix) < _SHORTEST_PREFIX:
        raise StorageError(f"{name!r} is ambiguous; give at least {_SHORTEST_PREFIX} characters after @.")
    return _read(store, found[-1])


def list_datasets() -> list[Dataset]:
    """Return every version of every data set, by name and from the oldest to the latest."""
    store = _store()
    return [_read(store, entry) for entry in _manifests(store)]


def put(source: Path | str, name: str) -> Dataset:
    """Upload a folder, or one file, under a name; repeating it with the same contents transfers nothing.

    After an interrupted upload, the next one sends only the missing files. Nothing is visible until all are stored.

    Args:
        source: the folder or file.
        name: up to 100 letters, digits, '.', '-' and '_'.

    Returns:
        The data set with its digest.

    Raises:
        StorageError: there are no files, a file changed during the upload, or a name is not valid, be it a file's.
        UnreachableError: the storage does not answer.
        AccessError: the storage rejected the account.
    """
    _check_name(name)
    store = _store()
    files = checksums.files_of(Path(source))
    before = {path: _state(file) for path, file in files.items()}
    total = sum(size for size, _ in before.values())
    sums = _sums(files, total)
    digest = checksums.digest(sums)
    # Even if there is a manifest: files deleted since are uploaded again.
    _send(store, f"{name}/{digest}", files, before)
    manifests = _manifests(store, name)
    if manifests and _digest_of(manifests[-1]) == digest:
        return _read(store, manifests[-1])
    text = {"bytes": total, "user": settings().user, "files": sums}
    store.write(f"{_MANIFESTS}/{name}/{digest}", json.dumps(text))
    return find(f"{name}@{digest}")


def _sums(files: Mapping[str, Path], total: int) -> Sums:
    sums: Sums = {}

    def take(path: str, file: Path, moved: Counter) -> None:
        sums[path] = checksums.sha256(file, moved.add)

    progress.run("Reading", total, [partial(take, path, file) for path, file in files.items()])
    return sums


def _send(store: ObjectStore, prefix: str, files: Mapping[str, Path], before: Mapping[str, tuple[int, int]]) -> None:
    """Upload the missing files; the digest in the prefix guarantees that the others have the same contents."""
    there = {entry.key: entry.size for entry in store.find(f"{prefix}/")}

    def send(path: str, file: Path, moved: Counter) -> None:
        key = f"{prefix}/{path}"
        store.upload(file, key, moved.add)
        if _state(file) != before[path]:
            _discard(store, key)
            raise StorageError(f"{file} changed during the upload; upload it again when nothing writes to it.")

    missing = {path: file for path, file in files.items() if there.get(f"{prefix}/{path}") != before[path][0]}
    if not missing:
        return
    total = sum(before[path][0] for path in missing)
    progress.run("Uploading", total, [partial(send, path, file) for path, file in missing.items()])


def _discard(store: ObjectStore, key: str) -> None:
    """Delete a file whose contents do not have its checksum.

    With an account that may only add files, it is emptied, so that the next upload replaces it.
    """
    try:
        store.delete(key)
    except AccessError:
        store.write(key, "")


def _state(file: Path) -> tuple[int, int]:
    """Return size in bytes and time of the last change; both stay the same for an unchanged file."""
    status = file.stat()
    return status.st_size, status.st_mtime_ns


def _read(store: ObjectStore, entry: Entry) -> Dataset:
    name, digest = _name_of(entry), _digest_of(entry)
    record = json.loads(store.read(entry.key))
    checksums.check_paths(record["files"])
    if checksums.digest(record["files"]) != digest:
        raise StorageError(f"The manifest {store.uri}/{entry.key} is damaged; upload the data set {name!r} again.")
    return Dataset(
        name,
        digest,
        f"{store.uri}/{name}/{digest}",
        size=record["bytes"],
        user=record["user"],
        modified=entry.modified,
        sums=record["files"],
    )


def _manifests(store: ObjectStore, name: str = "") -> list[Entry]:
    entries = store.find(f"{_MANIFESTS}/{name}/" if name else f"{_MANIFESTS}/")
    return sorted(entries, key=lambda entry: (_name_of(entry), entry.modified))


def _name_of(entry: Entry) -> str:
    return entry.key.split("/")[1]


def _digest_of(entry: Entry) -> str:
    return entry.key.split("/")[2]


def _known(store: ObjectStore, name: str) -> str:
    versions = [f"{name}@{_digest_of(entry)[:12]}" for entry in _manifests(store, name)]
    names = versions or sorted({_name_of(entry) for entry in _manifests(store)})
    return f"are: {', '.join(names)}" if names else "is none yet: `mlplatform data put FOLDER NAME` stores one"


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise StorageError(f"Invalid data set name {name!r}: use letters, digits, '.', '-' and '_'.")


def _store() -> ObjectStore:
    return open_store(settings().datasets, "MLPLATFORM_DATASETS")


def _record(found: Dataset) -> None:
    """Make the data set an input of the run; several calls and ranks record it once."""
    if server.uri() is None:
        server.report_untracked()
        return
    from mlflow import MlflowClient, active_run

    run = active_run() or (server.find_run(job_id) if (job_id := settings().job_id) else None)
    if run is None:
        print(
            f"The data set {found.name} is not recorded, because no run is open; open mlplatform.job_run() first.",
            file=sys.stderr,
            flush=True,
        )
        return
    MlflowClient().log_inputs(run.info.run_id, datasets=[_input(found)])


def _input(found: Dataset) -> DatasetInput:
    from mlflow.entities import Dataset as TrackedDataset
    from mlflow.entities import DatasetInput, InputTag

    source_type = "s3" if found.uri.startswith("s3://") else "local"
    profile = {"files": len(found.sums), "bytes": found.size}
    tracked = TrackedDataset(
        found.name, found.digest, source_type, json.dumps({"uri": found.uri}), profile=json.dumps(profile)
    )
    return DatasetInput(tracked, [InputTag("mlflow.data.context", "training")])
