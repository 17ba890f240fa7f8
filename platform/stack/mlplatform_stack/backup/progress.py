"""Progress of a backup or restore, as lines on stderr: a program reads stdout."""

from __future__ import annotations

import sys
import time

_SECONDS = 2.0


class Progress:
    """Count of members and bytes, printed every two seconds and at the end.

    Args:
        what: word for what is being done, such as "saved".
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._members, self._bytes = 0, 0
        self._printed = time.monotonic()

    def note(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def add(self, size: int) -> None:
        self._members += 1
        self._bytes += size
        if time.monotonic() - self._printed >= _SECONDS:
            self.print()

    def print(self) -> None:
        from rich.filesize import decimal

        self._printed = time.monotonic()
        self.note(f"{self._what} {self._members:,} files and objects, {decimal(self._bytes)}")
