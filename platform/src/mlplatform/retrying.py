"""A pyarrow file system that waits for its S3 server to come back, so that an outage does not end a training."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

from pyarrow.fs import FileSelector, FileSystem, FileSystemHandler, PyFileSystem

_Result = TypeVar("_Result")

_OUTAGE_SECONDS = 600.0
_PAUSE_SECONDS = 1.0
_WARN_SECONDS = 30.0

_FINAL = ("ACCESS_DENIED", "NO_SUCH_BUCKET", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "VALIDATION")
"""Arrow's names of what does not pass by itself (`aws-cpp-sdk-s3`, S3Errors)."""

_log = logging.getLogger(__name__)


class RetryingHandler(FileSystemHandler):  # type: ignore[misc]
    """Repeats what failed for a reason that passes, for ten minutes; streams are those of the file system itself."""

    def __init__(self, files: FileSystem) -> None:
        self.files = files

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RetryingHandler) and bool(self.files.equals(other.files))

    def __hash__(self) -> int:
        return hash(self.files.type_name)

    def get_type_name(self) -> str:
        return f"retrying+{self.files.type_name}"

    def normalize_path(self, path: str) -> Any:
        return self.files.normalize_path(path)

    def get_file_info(self, paths: list[str]) -> Any:
        return retry(lambda: self.files.get_file_info(paths))

    def get_file_info_selector(self, selector: FileSelector) -> Any:
        return retry(lambda: self.files.get_file_info(selector))

    def create_dir(self, path: str, recursive: bool) -> None:
        retry(lambda: self.files.create_dir(path, recursive=recursive))

    def delete_dir(self, path: str) -> None:
        retry(lambda: self.files.delete_dir(path))

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        retry(lambda: self.files.delete_dir_contents(path, missing_dir_ok=missing_dir_ok))

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError("No training empties a whole storage.")

    def delete_file(self, path: str) -> None:
        retry(lambda: self.files.delete_file(path))

    def move(self, src: str, dest: str) -> None:
        retry(lambda: self.files.move(src, dest))

    def copy_file(self, src: str, dest: str) -> None:
        retry(lambda: self.files.copy_file(src, dest))

    def open_input_stream(self, path: str) -> Any:
        return retry(lambda: self.files.open_input_stream(path, compression=None))

    def open_input_file(self, path: str) -> Any:
        return retry(lambda: self.files.open_input_file(path))

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        # An S3 stream connects when it is closed, where nothing can be repeated: ask the server first.
        retry(lambda: self.files.get_file_info([path]))
        return retry(lambda: self.files.open_output_stream(path, compression=None, metadata=metadata))

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        return retry(lambda: self.files.open_append_stream(path, compression=None, metadata=metadata))


def retrying(files: FileSystem) -> PyFileSystem:
    """Wrap a file system; it can be pickled, as Ray Train needs."""
    return PyFileSystem(RetryingHandler(files))


def retry(call: Callable[[], _Result], passes: Callable[[Exception], bool] | None = None) -> _Result:
    """Call until it works, for at most ten minutes; a failure that does not pass by itself is raised at once."""
    passes = passes or _passes
    started = time.monotonic()
    warned = started - _WARN_SECONDS
    while True:
        try:
            return call()
        except Exception as error:
            now = time.monotonic()
            if not passes(error) or now - started > _OUTAGE_SECONDS:
                raise
            if now - warned >= _WARN_SECONDS:
                _log.warning("The storage is away, this waits for it: %s", error)
                warned = now
            time.sleep(_PAUSE_SECONDS)


def _passes(error: Exception) -> bool:
    text = str(error)
    return isinstance(error, OSError) and "AWS Error" in text and not any(reason in text for reason in _FINAL)
