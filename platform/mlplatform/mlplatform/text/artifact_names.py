"""Names of artifacts and of models' files that every store can keep: S3, file systems, and routes of HTTP."""

from __future__ import annotations

import re

_UNSTORABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff\ufffd]")
"""Control characters, which neither routes nor S3's XML can carry, and what stands for bytes that are not UTF-8."""

_LONGEST_NAME, _LONGEST_PATH = 255, 1024
"""Bytes of a name in a file system and of a key in S3."""


def sentence(path: str, problem: str) -> str:
    """Return the message for a path with a problem."""
    return f"Invalid path: the artifact name {path!r} {problem}."


def problem_of(path: str) -> str | None:
    """Return why no store can keep a path, or None."""
    if _UNSTORABLE.search(path):
        return "has a control character or is not UTF-8; rename the file"
    # Some object stores take both for separators.
    parts = re.split(r"[/\\]", path)
    if path.startswith("/") or ".." in parts or ("\\" in path and "." in parts):
        return "leads out of its folder; use a name without `..`"
    if max(len(part.encode()) for part in path.split("/")) > _LONGEST_NAME or len(path.encode()) > _LONGEST_PATH:
        return f"is too long; use names of at most {_LONGEST_NAME} and paths of at most {_LONGEST_PATH} bytes"
    return None
