"""History of a training run: every report, stored beside its checkpoints as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mlplatform.storage import addresses, filesystem

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


FIELDS = ("timestamp", "training_iteration", "time_this_iter_s")
"""Fields of every report: seconds since 1970, number of reports so far, seconds since the previous one."""

FOLDER = "reports"

_ENDING = ".jsonl"

_LINES = 1000
"""Reports per file. S3 cannot append, so each delivery rewrites the last file."""


class HistorySink:
    """Numbered files `reports/00000.jsonl` and so on below a training run's folder; a restart begins a new one.

    A replaced attempt of the job writes nothing more.
    """

    def __init__(self, uri: str) -> None:
        self.name = f"Storage {uri}"
        self._uri = f"{uri}/{FOLDER}"
        self._lines: list[str] = []
        self._number = 0

    def open(self) -> None:
        self._files, self._folder = filesystem.filesystem(self._uri)
        self._files.create_dir(self._folder, recursive=True)
        self._number = len(_names(self._files, self._folder))

    def send(self, items: Sequence[dict[str, Any]]) -> None:
        lines = [*self._lines, *(json.dumps(item) for item in items)]
        number = self._number
        while lines:
            with self._files.open_output_stream(f"{self._folder}/{number:05d}{_ENDING}") as file:
                file.write("\n".join(lines[:_LINES]).encode())
            if len(lines) < _LINES:
                break
            lines, number = lines[_LINES:], number + 1
        self._lines, self._number = lines, number


def history(name: str = "0", job_id: str | None = None) -> list[dict[str, Any]]:
    """Return all reports of a training run in order, even if there are no checkpoints.

    Args:
        name: name of the training run, as given to `run_config`; the first unnamed one is "0".
        job_id: id of another job; None means this one.

    Returns:
        The reported values with the fields that `run_config` adds; `pandas.DataFrame(history())` makes a table.
        If a report was repeated after a crash, the first one counts, as in MLflow.

    Raises:
        StorageError: the storage cannot be read.
    """
    files, folder = filesystem.filesystem(f"{addresses.checkpoint_uri(name, job_id)}/{FOLDER}")
    reports: dict[int, dict[str, Any]] = {}
    for line in _read(files, folder):
        report = json.loads(line)
        known = reports.setdefault(report["training_iteration"], report)
        if report.get("done"):
            known["done"] = True
    return [reports[iteration] for iteration in sorted(reports)]


def _read(files: FileSystem, folder: str) -> Iterator[str]:
    for name in _names(files, folder):
        with files.open_input_stream(name) as file:
            yield from file.read().decode().splitlines()


def _names(files: FileSystem, folder: str) -> list[str]:
    """Return the files of reports in order, without drafts that a kill has left."""
    from pyarrow.fs import FileSelector

    found = files.get_file_info(FileSelector(folder, allow_not_found=True))
    return sorted(info.path for info in found if info.is_file and info.path.endswith(_ENDING))
