"""What a job has left to go on from: the latest and the best checkpoint of each of its training runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from mlplatform.storage import addresses, filesystem, objects

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


KEPT_BY = "mlplatform.kept_by"
"""Key of a checkpoint's metadata: the metric by which the best ones are kept."""

_SNAPSHOT = "checkpoint_manager_snapshot.json"
"""Where Ray Train lists the checkpoints that it keeps (`ray.train.v2._internal.execution.checkpoint` of Ray 2.60)."""

_METADATA = ".metadata.json"

_PREFIX = "checkpoint_"
"""Of the folders that Ray Train makes for checkpoints."""


@dataclass(frozen=True)
class Kept:
    """A checkpoint that is in storage."""

    uri: str
    metrics: Mapping[str, Any]
    """What was reported with it."""


@dataclass(frozen=True)
class Fit:
    """A training run of a job."""

    name: str
    latest: Kept
    best: Kept | None
    """None where checkpoints are kept by their age."""

    metric: str | None
    """By which the best is the best."""

    @classmethod
    def read(cls, uri: str, name: str) -> Self | None:
        """A training run by the address of its folder; None where it has kept no checkpoint."""
        files, folder = filesystem.filesystem(uri)
        snapshot = _json(files, f"{folder}/{_SNAPSHOT}")
        if not snapshot["latest_checkpoint_result"]:
            return None
        found = (snapshot["latest_checkpoint_result"], *snapshot["checkpoint_results"][-1:])
        latest, last = (Kept(f"{uri}/{kept['checkpoint_dir_name']}", kept["metrics"]) for kept in found)
        metadata = _json(files, f"{folder}/{found[0]['checkpoint_dir_name']}/{_METADATA}")
        metric = metadata.get(KEPT_BY)
        # Ray sorts them by the metric, where there is one, the best at the end.
        return cls(name, latest, last if metric else None, metric)


def fits(job_id: str | None = None) -> list[Fit]:
    """The training runs of a job that have checkpoints, by name; None means this job.

    Raises:
        StorageError, UnreachableError, AccessError: the storage cannot be read.
    """
    root = addresses.checkpoint_uri(job_id=job_id)
    folders = [file.removesuffix(f"/{_SNAPSHOT}") for file in objects.list_files(root) if file.endswith(_SNAPSHOT)]
    found = [Fit.read(folder, folder.removeprefix(f"{root}/")) for folder in folders]
    return [fit for fit in found if fit]


def remove_unkept(uri: str) -> list[str]:
    """Remove the checkpoints that a training run's folder holds and Ray Train does not know, and return their names.

    Such a one is left where a worker is lost after another has uploaded its part and before both have reported it.
    Nothing may be training into the folder meanwhile.

    Args:
        uri: of the training run's folder.
    """
    from pyarrow.fs import FileSelector, FileType

    files, folder = filesystem.filesystem(uri)
    snapshot = _json(files, f"{folder}/{_SNAPSHOT}")
    known = [*snapshot.get("checkpoint_results", []), snapshot.get("latest_checkpoint_result") or {}]
    names = {kept.get("checkpoint_dir_name") for kept in known}
    unkept = sorted(
        entry.base_name
        for entry in files.get_file_info(FileSelector(folder, allow_not_found=True))
        if entry.type == FileType.Directory and entry.base_name.startswith(_PREFIX) and entry.base_name not in names
    )
    for name in unkept:
        files.delete_dir(f"{folder}/{name}")
    return unkept


def count_reports(uri: str, key: str) -> int:
    """How many reports a training run has made up to its latest checkpoint.

    Each checkpoint's metadata says so, unless the controller was lost just after Ray Train had noted the checkpoint.
    Then it is the number of the newest one that does, and as many as Ray has counted since; it counts a replayed report
    again, so the number may be too high, which leaves out steps, but never too low, which would lose reports.

    Args:
        uri: of the training run's folder.
        key: of the metadata.
    """
    files, folder = filesystem.filesystem(uri)
    snapshot = _json(files, f"{folder}/{_SNAPSHOT}")
    latest = snapshot.get("latest_checkpoint_result")
    if not latest:
        return 0
    names = [kept["checkpoint_dir_name"] for kept in snapshot["checkpoint_results"]]
    indices = dict(zip(names, snapshot["checkpoint_report_indices"], strict=True))
    last = int(indices[latest["checkpoint_dir_name"]])
    for name in sorted(names, key=indices.__getitem__, reverse=True):
        counted = _json(files, f"{folder}/{name}/{_METADATA}").get(key)
        if counted is not None:
            return int(counted) + last - int(indices[name])
    return last + 1


def restore_nan(uri: str, metric: str) -> None:
    """Make a training run whose checkpoints are kept by a metric readable for Ray Train, which writes NaN as null.

    It can sort NaN, but not null: a later attempt would fail at its first checkpoint. (Infinity becomes null too.)

    Args:
        uri: of the training run's folder, into which nothing is training yet.
        metric: as given to Ray; "a/b" is b of a.
    """
    files, folder = filesystem.filesystem(uri)
    snapshot = _json(files, f"{folder}/{_SNAPSHOT}")
    results = [
        *snapshot.get("checkpoint_results", []),
        *snapshot.get("pending_training_results", []),
        snapshot.get("latest_checkpoint_result"),
    ]
    lost = [place for result in results if result and (place := _place_of_null(result["metrics"], metric))]
    for values, key in lost:
        values[key] = math.nan
    if lost:
        with files.open_output_stream(f"{folder}/{_SNAPSHOT}") as file:
            file.write(json.dumps(snapshot).encode())


def _place_of_null(metrics: Any, metric: str) -> tuple[dict[str, Any], str] | None:
    if isinstance(metrics, dict) and metric in metrics:
        return (metrics, metric) if metrics[metric] is None else None
    first, _, rest = metric.partition("/")
    return _place_of_null(metrics.get(first), rest) if rest and isinstance(metrics, dict) else None


def _json(files: FileSystem, path: str) -> dict[str, Any]:
    """A small file of JSON; empty where there is none."""
    try:
        with files.open_input_stream(path) as file:
            content: dict[str, Any] = json.loads(file.read())
            return content
    except FileNotFoundError:
        return {}
