"""A pyarrow file system for checkpoints that retries during outages and rejects writes of replaced attempts."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow.fs import FileSelector, FileSystem, FileSystemHandler, PyFileSystem

from mlplatform.files import atomic
from mlplatform.storage import fence
from mlplatform.storage.retry import retry
from mlplatform.storage.s3 import arrow_filesystem

_Result = TypeVar("_Result")

_SMALL_BYTES = 4 << 20
"""Largest file that is kept in memory until it is closed, so that it can be rewritten as a whole."""

_abandoned: list[Any] = []
"""Streams that are not complete: pyarrow cannot abort one, and would finish its file when it is freed."""


class RetryingHandler(FileSystemHandler):  # type: ignore[misc]
    """File system handler that retries during an outage, for ten minutes; each write calls `fence.check` first.

    The `tuner.pkl` of searches has the name.
    """

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
    """A file being written; a small one is written when it is closed, right after a check of the fence."""

    def __init__(self, files: FileSystem, path: str, metadata: Any) -> None:
        self._files = files
        self._path = path
        self._metadata = metadata
        self._kept = io.BytesIO()
        self._stream: Any = None
        self._written = 0
        self.closed = False
        # Raised before the caller computes what it would write.
        fence.check()

    def write(self, data: bytes | pa.Buffer) -> int:
        size = len(data)
        if self._stream is None and self._written + size > _SMALL_BYTES:
            self._stream = _write(self._open)
            # Until it is closed: after an error, pyarrow frees a stream without closing it.
            _abandoned.append(self._stream)
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
        """Do nothing: a file appears when it is closed."""

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self._stream is None:
            _write(self._write_kept)
            return
        fence.check()
        self._stream.close()
        _abandoned.remove(self._stream)

    def _write_kept(self) -> None:
        """Replace the file as a whole: an interrupted write would leave Ray Train's list of checkpoints unreadable.

        S3 does so by itself; in a folder, opening a file empties it.
        """
        if self._files.type_name == "local":
            with atomic.new_file(Path(self._path)) as draft:
                draft.write_bytes(self._kept.getbuffer())
            return
        with self._open() as stream:
            stream.write(self._kept.getbuffer())

    def _open(self) -> Any:
        return self._files.open_output_stream(self._path, compression=None, metadata=self._metadata)


def _write(call: Callable[[], _Result]) -> _Result:
    """Retry a write; a replaced attempt of the job writes nothing, even if it was replaced during the wait."""

    def unless_fenced() -> _Result:
        fence.check()
        return call()

    return retry(unless_fenced)


def filesystem(uri: str) -> tuple[FileSystem, str]:
    """Return the pyarrow file system of an address and the path in it; one on S3 waits while its server is unavailable.

    What is written through it raises FencedError once a later attempt of this job has been started.
    """
    files, path = arrow_filesystem(uri)
    if uri.startswith("s3://") or fence.applies():
        files = PyFileSystem(RetryingHandler(files))  # which Ray Train can pickle
    # Another folder is not wrapped: no attempt is ever replaced, and Ray reads checkpoints in place, without a copy.
    return files, path
