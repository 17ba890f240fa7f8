"""Files of a model in MLflow: their checksums are recorded once, and every download is verified against them.

The gateway's record of digests counts; without one, the checksums beside the files.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mlplatform.api.storage import Digests
from mlplatform.client.connection import Connection
from mlplatform.compat import mlflow as mlflow_compat
from mlplatform.contract import MODEL_DIGESTS
from mlplatform.errors import PlatformError, RegistryError
from mlplatform.files import atomic, checksums, progress
from mlplatform.files.checksums import Sums
from mlplatform.files.progress import Counter
from mlplatform.settings.job import settings

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.store.artifact.artifact_repo import ArtifactRepository


def open_files(location: str) -> ArtifactRepository:
    """Return the files at an address of MLflow, such as `mlflow-artifacts:/...`, which its server proxies."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(location)


def record(files: ArtifactRepository) -> str:
    """Upload SHA256SUMS beside a model's files, unless it already exists.

    Every file is downloaded once, as the server returns it; each thread keeps one at a time on this machine's disk.

    Args:
        files: the model's files.

    Returns:
        The digest over all names and contents, hexadecimal.

    Raises:
        RegistryError: there are no files.
    """
    sizes = _sizes(files)
    if not sizes.keys() - {checksums.FILE}:
        raise RegistryError(f"There are no files of a model at {files.artifact_uri}.")
    with tempfile.TemporaryDirectory(prefix="mlplatform-") as folder:
        sums = _recorded(files, Path(folder)) if checksums.FILE in sizes else None
        if sums is None or sums.keys() != sizes.keys() - {checksums.FILE}:
            sizes.pop(checksums.FILE, None)
            sums = _computed(files, sizes, Path(folder))
            (Path(folder) / checksums.FILE).write_text(checksums.render(sums))
            files.log_artifact(str(Path(folder) / checksums.FILE))  # type: ignore[no-untyped-call]
    return checksums.digest(sums)


def gateway_record(version: ModelVersion) -> dict[str, str] | str:
    """Return path -> SHA-256 of each file of a version as recorded; a sentence if there is no record.

    Raises:
        UnreachableError, AccessError: the environment names a gateway that does not answer, or rejects the token.
        JobError: what answers there is not the platform's gateway.
    """
    config = settings()
    own = config.platform_tracking_uri
    if own and config.tracking_uri and own.rstrip("/") != config.tracking_uri.rstrip("/"):
        return "MLFLOW_TRACKING_URI is not the platform's own MLflow."
    key = {"source": str(version.source), "created": int(version.creation_timestamp)}
    try:
        with Connection(config) as link:
            found = link.patiently(lambda: link.read(Digests, "GET", MODEL_DIGESTS, params=key), known=False).files
    except PlatformError as error:
        if "ray_address" in config.model_fields_set:
            raise
        return f"RAY_ADDRESS names no gateway ({error})"
    return found or "it has no digests of this version yet; try again in some seconds."


def check(files: ArtifactRepository, what: str, record: Sums) -> None:
    """Read each file of a model, and compare it with its digest.

    Args:
        files: the model's files.
        what: name and version, for messages.
        record: digests of all files.

    Raises:
        RegistryError: a file differs or is missing; the message names it.
    """
    sizes = _recorded_sizes(files, what, record)
    with tempfile.TemporaryDirectory(prefix="mlplatform-") as folder:
        found = _computed(files, sizes, Path(folder))
    for path, digest in record.items():
        if found[path] != digest:
            raise _replaced(path, what)


def fetch(files: ArtifactRepository, folder: Path, what: str, digest: str | None, record: Sums | None = None) -> Path:
    """Download a model's files into a folder, atomically; nothing is transferred if the folder already holds them.

    Args:
        files: the model's files.
        folder: destination.
        what: name and version, for messages.
        digest: digest of the registered version; None if it was registered without one.
        record: digests of all files, which count instead of those beside the files; None if there are none.

    Returns:
        The folder.

    Raises:
        RegistryError: a file differs from the registered one.
        StorageError: the folder holds other files or cannot be written.
    """
    if record is not None:
        return _fetch_sums(files, folder, what, _recorded_sizes(files, what, record), record)
    sizes = _sizes(files)
    if checksums.FILE not in sizes and digest is None:
        print(f"{what} was registered without checksums, so its files are not checked.", file=sys.stderr, flush=True)
        return _fetch(files, folder, what, sizes, None)
    with tempfile.TemporaryDirectory(prefix="mlplatform-") as scratch:
        sums = _recorded(files, Path(scratch)) if checksums.FILE in sizes else {}
    if digest is not None and checksums.digest(sums) != digest:
        raise RegistryError(
            f"The checksums of {what} are not the registered ones; log the model again and register it."
        )
    return _fetch_sums(files, folder, what, {path: sizes.get(path, 0) for path in sums}, sums)


def _recorded_sizes(files: ArtifactRepository, what: str, record: Sums) -> dict[str, int]:
    """Return the size of each recorded file; raise RegistryError if one is missing."""
    sizes = _sizes(files)
    for path in record:
        if path not in sizes:
            raise RegistryError(
                f"The file {path} of {what} is missing, which it had when it was registered; log the model again and "
                "register it."
            )
    return {path: sizes[path] for path in record}


def _replaced(path: str, what: str) -> RegistryError:
    return RegistryError(
        f"The file {path} of {what} does not have the checksum that was registered: it was replaced or damaged in the "
        "storage, or damaged in transit; try again, and if that fails, log the model again and register it."
    )


def _fetch_sums(files: ArtifactRepository, folder: Path, what: str, sizes: dict[str, int], sums: Sums) -> Path:
    if (folder / checksums.FILE).is_file() and checksums.holds(folder, sums):
        return folder
    checksums.check_paths(sums)
    return _fetch(files, folder, what, sizes, sums)


def _fetch(files: ArtifactRepository, folder: Path, what: str, sizes: dict[str, int], sums: Sums | None) -> Path:
    def is_model(there: Path) -> bool:
        return (there / checksums.FILE).is_file()

    def download(path: str, draft: Path, moved: Counter) -> None:
        _get(files, path, draft / path, moved)
        if sums is not None and checksums.sha256(draft / path) != sums[path]:
            raise _replaced(path, what)

    with atomic.new_folder(folder, is_model) as draft:
        tasks = [partial(download, path, draft) for path in sizes]
        progress.run(f"Downloading {what}", sum(sizes.values()), tasks)
        if sums is not None:
            (draft / checksums.FILE).write_text(checksums.render(sums))
    return folder


def _computed(files: ArtifactRepository, sizes: dict[str, int], scratch: Path) -> Sums:
    sums: Sums = {}

    def compute(number: int, path: str, moved: Counter) -> None:
        local = scratch / str(number)
        _get(files, path, local, moved)
        sums[path] = checksums.sha256(local)
        local.unlink()

    tasks = [partial(compute, number, path) for number, path in enumerate(sizes)]
    progress.run("Reading the model", sum(sizes.values()), tasks)
    return sums


def _recorded(files: ArtifactRepository, scratch: Path) -> Sums:
    local = scratch / checksums.FILE
    _get(files, checksums.FILE, local, Counter())
    return checksums.parse(local.read_text())


def _get(files: ArtifactRepository, path: str, local: Path, moved: Counter) -> None:
    local.parent.mkdir(parents=True, exist_ok=True)
    with moved.growing(local):
        mlflow_compat.download_file(files, path, local)


def _sizes(files: ArtifactRepository, folder: str | None = None) -> dict[str, int]:
    """Return path -> bytes of each file, also in the folders below."""
    found: dict[str, int] = {}
    for entry in files.list_artifacts(folder):
        found |= _sizes(files, entry.path) if entry.is_dir else {entry.path: entry.file_size or 0}
    return found
