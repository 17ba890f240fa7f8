"""A stand-in for Ray's head that answers with recorded listings."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

UNIT = Path(__file__).parents[2]

RECORDED: dict[str, Any] = json.loads((UNIT / "ray_utilisation.json").read_text())
"""Answers of a head whose only node has two GPUs, both in use, and 4 CPUs, of which two are."""


class ListingHead:
    """Answers with the listings in `answers`, by path; others fail, as do all while it is down. Counts the requests."""

    def __init__(self, listed: Mapping[str, Any], jobs: Sequence[Any] = (), actors: Sequence[Any] = ()) -> None:
        self.answers: dict[str, Any] = {
            "/api/jobs/": jobs,
            "/api/v0/nodes": {"data": {"result": {"result": listed["shapes"]}}},
            "/nodes": {"data": listed["summary"]},
            "/api/v0/actors": {"data": {"result": {"result": actors}}},
        }
        self.down = False
        self.requests: Counter[str] = Counter()

    def __call__(self, method: str, path: str) -> tuple[int, str]:
        path, _, _ = path.partition("?")
        self.requests[path] += 1
        found = None if self.down or method != "GET" else self.answers.get(path)
        return (500, "down") if found is None else (200, json.dumps(found))
