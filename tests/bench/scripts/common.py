"""Helpers for the benchmark's jobs."""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

from harness import RESULT
from pyarrow.fs import FileType

from mlplatform.storage import addresses, filesystem

MB = 1_000_000


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    return parser.parse_args()


def print_result(**measured: Sequence[tuple[float, float]]) -> None:
    """Print pairs by row name to the job's log, which `bench.py` reads."""
    print(f"{RESULT} {json.dumps(measured)}", flush=True)


def write_random(file: Path, megabytes: int) -> None:
    """Write incompressible bytes."""
    with file.open("wb") as output:
        for _ in range(megabytes):
            output.write(os.urandom(MB))


def remove_files_of_job() -> None:
    """Delete the job's checkpoints."""
    files, path = filesystem.filesystem(addresses.checkpoint_uri())
    if files.get_file_info(path).type == FileType.Directory:
        files.delete_dir(path)
