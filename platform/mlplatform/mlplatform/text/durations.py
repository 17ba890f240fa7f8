"""Durations as people write and read them: `90m`, `4 h`."""

from __future__ import annotations

import math
import re

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}

_DURATION = re.compile(r"(\d{1,6})([smhdw])", re.ASCII)

_MOST = 999_999
"""Largest number that a duration has."""


def seconds_in(text: str) -> int:
    """Return the seconds of a duration such as `7d`.

    Raises:
        ValueError: it is not a number and a unit; the message says which ones are valid.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError("use a number of at most 6 digits and s, m, h, d or w, as in 7d")
    return int(match[1]) * _SECONDS[match[2]]


def written(seconds: float) -> str:
    """Return a duration as `seconds_in` reads it, rounded up to seconds, or beyond 11 days to minutes."""
    whole = math.ceil(seconds)
    number, unit = _largest_unit(whole if whole <= _MOST else math.ceil(whole / 60) * 60)
    return f"{number:g}{unit}"


def in_words(seconds: float) -> str:
    """Return a duration in hours, minutes or seconds, as in `4 h` or `90 min`."""
    number, unit = _largest_unit(seconds)
    return f"{number:g} {'min' if unit == 'm' else unit}"


def _largest_unit(seconds: float) -> tuple[float, str]:
    """Return a duration in the largest unit, hours at most, of which it is a multiple."""
    unit = next((unit for unit in ("h", "m") if seconds and seconds % _SECONDS[unit] == 0), "s")
    return seconds / _SECONDS[unit], unit
