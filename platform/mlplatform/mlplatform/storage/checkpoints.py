"""The latest and the best checkpoint of each of a job's training runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from mlplatform.storage import addresses, filesystem, objects
from mlplatform.storage import checkpoint_layout as layout

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


KEPT_BY = "mlplatform.kept_by"
"""Key of a checkpoint's metadata: the metric by which the best ones are kept."""


@dataclass(frozen=True)
class KeptCheckpoint:
    """A checkpoint that is in storage."""

    uri: str
    metrics: Mapping[str, Any]
    """Metrics that were reported with it."""


@dataclass(frozen=True)
class TrainingRun:
    """A training run of a job."""

    name: str
    latest: KeptCheckpoint
    best: KeptCheckpoint | None
    """The best checkpoint; None if checkpoints are kept by age."""

    metric: str | None
    """Metric by which the best checkpoint is chosen."""

    @classmethod
    def read(cls, uri: str, name: str) -> Self | None:
        """Read a training run by the address of its folder; None if it has kept no checkpoint."""
        files, folder = filesystem.filesystem(uri)
        snapshot = _json(files, f"{folder}/{layout.SNAPSHOT}")
        if not snapshot[layout.LATEST]:
            return None
        found = (snapshot[layout.LATEST], *snapshot[layout.RESULTS][-1:])
        latest, last = (KeptCheckpoint(f"{uri}/{kept[layout.FOLDER]}", kept[layout.METRICS]) for kept in found)
        metadata = _json(files, f"{folder}/{found[0][layout.FOLDER]}/{layout.METADATA}")
        metric = metadata.get(KEPT_BY)
        # Ray sorts them by the metric, if there is one, the best last.
        return cls(name, latest, last if metric else None, metric)


def training_runs(job_id: str | None = None) -> list[TrainingRun]:
    """List the training runs of a job that have checkpoints, by name; None means this job.

    Raises:
        StorageError, UnreachableError, AccessError: the storage cannot be read.
    """
    root = addresses.checkpoint_uri(job_id=job_id)
    folders = [
        file.removesuffix(f"/{layout.SNAPSHOT}") for file in objects.list_files(root) if file.endswith(layout.SNAPSHOT)
    ]
    found = [TrainingRun.read(folder, folder.removeprefix(f"{root}/")) for folder in folders]
    return [run for run in found if run]


def remove_unkept(uri: str) -> list[str]:
    """Remove the checkpoints in a training run's folder that Ray Train does not list, and return their names.

    A worker that is lost after another one has uploaded its part, and before both have reported it, leaves such a
    checkpoint. No training may write to the folder meanwhile.

    Args:
        uri: address of the training run's folder.
    """
    from pyarrow.fs import FileSelector, FileType

    files, folder = filesystem.filesystem(uri)
    snapshot = _json(files, f"{folder}/{layout.SNAPSHOT}")
    known = [*snapshot.get(layout.RESULTS, []), snapshot.get(layout.LATEST) or {}]
    names = {kept.get(layout.FOLDER) for kept in known}
    unkept = sorted(
        entry.base_name
        for entry in files.get_file_info(FileSelector(folder, allow_not_found=True))
        if entry.type == FileType.Directory
        and entry.base_name.startswith(layout.FOLDER_PREFIX)
        and entry.base_name not in names
    )
    for name in unkept:
        files.delete_dir(f"{folder}/{name}")
    return unkept


def count_reports(uri: str, key: str) -> int:
    """Count the reports of a training run up to its latest checkpoint.

    Each checkpoint's metadata holds the count, unless the controller was lost just after Ray Train had listed the
    checkpoint. In that case the result is the count of the newest checkpoint that has one, plus the reports that Ray
    has counted since. Ray counts a replayed report again, so the count may be too high, which skips steps, but never
    too low, which would lose reports.

    Args:
        uri: address of the training run's folder.
        key: key of the metadata.
    """
    files, folder = filesystem.filesystem(uri)
    snapshot = _json(files, f"{folder}/{layout.SNAPSHOT}")
    latest = snapshot.get(layout.LATEST)
    if not latest:
        return 0
    names = [kept[layout.FOLDER] for kept in snapshot[layout.RESULTS]]
    indices = dict(zip(names, snapshot[layout.INDICES], strict=True))
    last = int(indices[latest[layout.FOLDER]])
    for name in sorted(names, key=indices.__getitem__, reverse=True):
        counted = _json(files, f"{folder}/{name}/{layout.METADATA}").get(key)
        if counted is not None:
            return int(counted) + last - int(indices[name])
    return last + 1


def restore_nan(uri: str, metric: str) -> None:
    """Replace null with NaN in the scores of a training run whose checkpoints are kept by a metric.

    Ray Train writes NaN as null (infinity too) and can sort NaN, but not null: a later attempt would fail at its first
    checkpoint.

    Args:
        uri: address of the training run's folder, to which no training writes yet.
        metric: as given to Ray; "a/b" is b of a.
    """
    files, folder = filesystem.filesystem(uri)
    snapshot = _json(files, f"{folder}/{layout.SNAPSHOT}")
    results = [
        *snapshot.get(layout.RESULTS, []),
        *snapshot.get(layout.PENDING, []),
        snapshot.get(layout.LATEST),
    ]
    lost = [place for result in results if result and (place := _place_of_null(result[layout.METRICS], metric))]
    for values, key in lost:
        values[key] = math.nan
    if lost:
        with files.open_output_stream(f"{folder}/{layout.SNAPSHOT}") as file:
            file.write(json.dumps(snapshot).encode())


def _place_of_null(metrics: Any, metric: str) -> tuple[dict[str, Any], str] | None:
    if isinstance(metrics, dict) and metric in metrics:
        return (metrics, metric) if metrics[metric] is None else None
    first, _, rest = metric.partition("/")
    return _place_of_null(metrics.get(first), rest) if rest and isinstance(metrics, dict) else None


def _json(files: FileSystem, path: str) -> dict[str, Any]:
    """Read a small JSON file; empty if there is none."""
    try:
        with files.open_input_stream(path) as file:
            content: dict[str, Any] = json.loads(file.read())
            return content
    except FileNotFoundError:
        return {}
