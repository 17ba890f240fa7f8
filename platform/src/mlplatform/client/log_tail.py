"""A job's growing log, put together from looks at its end.

Ray's own tail (`/api/jobs/<id>/logs/tail`) holds every line back for 1 to 3 s, because it sleeps between reading and
sending (`file_tail_iterator` in `ray/dashboard/modules/job/utils.py`, Ray 2.60), and its endless stream
(`/api/v0/logs/stream`) goes on in the dashboard after the client has left, until 100 of them block the state API. So
the last lines are asked for again and again, and joined to what is there.
"""

from __future__ import annotations

from collections import deque

LOOKS = (200, 5000, -1)
"""Lines that are asked for: a few, more when those do not join on, at last all of them."""

_SURE = 10
"""Lines that have to agree; fewer could agree by chance."""


class LogTail:
    """What has been seen of one log file."""

    def __init__(self) -> None:
        self._count = 0
        self._recent: deque[str] = deque(maxlen=max(LOOKS))

    def join(self, text: str, asked: int, *, ended: bool = False) -> list[str] | None:
        """Join the end of the log to what was seen before.

        Args:
            text: the last `asked` lines.
            asked: -1 for the whole log.
            ended: nothing will be added, so a last line without its end is complete.

        Returns:
            The new lines without their ends; None when it cannot be told which ones are new, so that more has to be
            asked for. The whole log always tells.
        """
        lines = text.split("\n")
        rest = lines.pop()
        whole = asked < 0 or len(lines) + bool(rest) < asked
        if rest and ended:
            lines.append(rest)
        new = lines[self._count :] if whole else self._after_overlap(lines)
        if new is not None:
            self._count += len(new)
            self._recent.extend(new)
            return [line.removesuffix("\r") for line in new]
        return None

    def _after_overlap(self, lines: list[str]) -> list[str] | None:
        """What follows the lines that were seen; None if they are not there, or in more than one place."""
        seen = list(self._recent)[-len(lines) :]
        overlaps = [
            size for size in range(_SURE, len(seen) + 1) if lines[size - 1] == seen[-1] and lines[:size] == seen[-size:]
        ]
        return lines[overlaps[0] :] if len(overlaps) == 1 else None
