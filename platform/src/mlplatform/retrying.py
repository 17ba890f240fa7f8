"""A pyarrow file system for checkpoints: it waits for its S3 server, and a replaced attempt cannot write through it."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow.fs import FileSelector, FileSystem, FileSystemHandler, PyFileSystem, S3FileSystem

from mlplatform import fence

_Result = TypeVar("_Result")

_OUTAGE_SECONDS = 600.0
_PAUSE_SECONDS = 1.0
_WARN_SECONDS = 30.0

_SMALL_BYTES = 4 << 20
"""Of a file that is kept in memory until it is closed, so that all of it can be written again."""

_FINAL = ("ACCESS_DENIED", "NO_SUCH_BUCKET", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "VALIDATION")
"""Arrow's names of what does not pass by itself (`aws-cpp-sdk-s3`, S3Errors)."""

_abandoned: list[Any] = []
"""Streams that must not be closed: pyarrow cannot abort one, and would finish its file when it is freed."""

_log = logging.getLogger(__name__)


class RetryingHandler(FileSystemHandler):  # type: ignore[misc]
    """Repeats what failed for a reason that passes, for ten minutes; each write asks `fence.check` first."""

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
        _write(lambda: self.files.create_dir(path, recursive=recursive))

    def delete_dir(self, path: str) -> None:
        _write(lambda: self.files.delete_dir(path))

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        _write(lambda: self.files.delete_dir_contents(path, missing_dir_ok=missing_dir_ok))

    def delete_root_dir_contents(self) -> None:
        _write(lambda: self.files.delete_dir_contents("/", accept_root_dir=True))

    def delete_file(self, path: str) -> None:
        _write(lambda: self.files.delete_file(path))

    def move(self, src: str, dest: str) -> None:
        _write(lambda: self.files.move(src, dest))

    def copy_file(self, src: str, dest: str) -> None:
        _write(lambda: self.files.copy_file(src, dest))

    def open_input_stream(self, path: str) -> Any:
        return retry(lambda: self.files.open_input_stream(path, compression=None))

    def open_input_file(self, path: str) -> Any:
        return retry(lambda: self.files.open_input_file(path))

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        return pa.PythonFile(_Output(self.files, path, metadata), mode="w")

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        return _write(lambda: self.files.open_append_stream(path, compression=None, metadata=metadata))


class _Output:
    """A file being written; a small one is written when it is closed, right after the fence was asked."""

    def __init__(self, files: FileSystem, path: str, metadata: Any) -> None:
        self._files = files
        self._path = path
        self._metadata = metadata
        self._kept = io.BytesIO()
        self._stream: Any = None
        self._written = 0
        self.closed = False
        # Said before the caller makes what it would write.
        fence.check()

    def write(self, data: bytes | pa.Buffer) -> int:
        size = len(data)
        if self._stream is None and self._written + size > _SMALL_BYTES:
            self._stream = _write(self._open)
            self._stream.write(self._kept.getbuffer())
            self._kept = io.BytesIO()
        if self._stream is None:
            self._kept.write(data)
        else:
            fence.check()
            self._stream.write(data)
        self._written += size
        return size

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        """A file appears when it is closed."""

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self._stream is None:
            _write(self._write_kept)
            return
        try:
            fence.check()
        except BaseException:
            _abandoned.append(self._stream)
            raise
        self._stream.close()

    def _write_kept(self) -> None:
        with self._open() as stream:
            stream.write(self._kept.getbuffer())

    def _open(self) -> Any:
        return self._files.open_output_stream(self._path, compression=None, metadata=self._metadata)


def retrying(files: FileSystem) -> PyFileSystem:
    """Wrap a file system; it can be pickled, as Ray Train needs."""
    return PyFileSystem(RetryingHandler(_writing_by_itself(files)))


def _writing_by_itself(files: FileSystem) -> FileSystem:
    """The same S3, written to by the thread that writes.

    By default pyarrow hands each write to its 8 threads for I/O. `copy_files` closes files in these very threads, where
    ours are written: with 8 of them or more at once, each would wait for a thread for ever.
    """
    if not isinstance(files, S3FileSystem):
        return files
    rebuild, (options,) = files.__reduce__()
    return rebuild({**options, "background_writes": False})


def retry(call: Callable[[], _Result], passes: Callable[[Exception], bool] | None = None) -> _Result:
    """Call until it works, for at most ten minutes; a failure that does not pass by itself is raised at once."""
    may_pass = passes or passes_by_itself
    started = time.monotonic()
    warned = started - _WARN_SECONDS
    while True:
        try:
            return call()
        except Exception as error:
            now = time.monotonic()
            if not may_pass(error) or now - started > _OUTAGE_SECONDS:
                raise
            if now - warned >= _WARN_SECONDS:
                _log.warning("The storage is away, this waits for it: %s", error)
                warned = now
            time.sleep(_PAUSE_SECONDS)


def passes_by_itself(error: Exception) -> bool:
    """Whether an error of pyarrow's tells of an S3 server that is away, and not of a request that it refuses."""
    text = str(error)
    return isinstance(error, OSError) and "AWS Error" in text and not any(reason in text for reason in _FINAL)


def _write(call: Callable[[], _Result]) -> _Result:
    """As `retry`, but nothing is written by an attempt of the job that was replaced, also while this waited."""

    def unless_fenced() -> _Result:
        fence.check()
        return call()

    return retry(unless_fenced)
