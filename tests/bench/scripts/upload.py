"""Megabytes per second of a checkpoint upload: with the platform, and with boto3's own `upload_file`."""

import itertools
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import boto3
from harness import interleaved
from scripts.common import MB, arguments, print_result, remove_files_of_job, write_random

from mlplatform.storage import addresses, filesystem, objects
from mlplatform.storage import upload as storage_upload

_uploads = itertools.count()


def through_the_platform(folder: Path) -> float:
    return _speed(folder, lambda uri: storage_upload.upload(folder, uri))


def through_boto3(folder: Path) -> float:
    (file,) = folder.iterdir()

    def upload(uri: str) -> None:
        parts = urlsplit(f"{uri}/{file.name}")
        boto3.session.Session().client("s3").upload_file(str(file), parts.netloc, parts.path.strip("/"))

    return _speed(folder, upload)


def _speed(folder: Path, upload: Callable[[str], None]) -> float:
    (file,) = folder.iterdir()
    uri = addresses.checkpoint_uri(str(next(_uploads)))
    start = time.perf_counter()
    upload(uri)
    seconds = time.perf_counter() - start
    assert objects.list_files(uri) == [f"{uri}/{file.name}"]
    files, path = filesystem.filesystem(uri)
    files.delete_dir(path)
    return file.stat().st_size / MB / seconds


def main() -> None:
    args = arguments()
    try:
        with tempfile.TemporaryDirectory() as small, tempfile.TemporaryDirectory() as folder:
            write_random(Path(small) / "state", 1)
            write_random(Path(folder) / "state", 32 if args.quick else 256)
            # Warm-up: imports, and one-time work of the server.
            through_the_platform(Path(small))
            through_boto3(Path(small))
            ours, theirs = partial(through_the_platform, Path(folder)), partial(through_boto3, Path(folder))
            print_result(upload=interleaved(ours, theirs, args.pairs))
    finally:
        remove_files_of_job()


if __name__ == "__main__":
    main()
