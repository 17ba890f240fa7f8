"""Copies of the stack's data sets and caches on a joined host, `python -m mlplatform_stack.hosts.copies HEARTBEAT`.

Fetches what is new every minute. Nothing is deleted here, because jobs on this host also download to the cache.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

_FOLDERS = {"shared": "/shared/", "food11": "/food11/"}
"""Module of the stack's rsync server, and the folder here."""

_SERVER = "rsync://copies:8730"

_EVERY_SECONDS = 60.0


def fetch(module: str, folder: str) -> bool:
    """Copy new and changed files of one module; return whether that succeeded."""
    options = ("--archive", "--numeric-ids", "--update", "--timeout=60", "--contimeout=10")
    command = ["rsync", *options, f"{_SERVER}/{module}/", folder]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        print(f"{module} could not be copied, the next try is in a minute: {result.stderr.strip()}", file=sys.stderr)
    return not result.returncode


def main(heartbeat: Path) -> None:
    """Copy until stopped; touch a file after each pass that succeeded."""
    while True:
        copied = [fetch(module, folder) for module, folder in _FOLDERS.items()]
        if all(copied):
            heartbeat.touch()
        time.sleep(_EVERY_SECONDS)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
