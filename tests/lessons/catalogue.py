"""Catalogue of all lessons in `jobs/`, and the choice of those that CI runs for a given commit."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import food11_lessons
import food11_ray_lessons
import framework_lessons
import pytest
import tracker_lessons
import train_lessons
import train_more_lessons
from lesson import JOBS, Left, Lesson

from mlplatform.client.jobs import Jobs

LESSONS: list[Lesson] = [
    *food11_lessons.LESSONS,
    *food11_ray_lessons.LESSONS,
    *train_lessons.LESSONS,
    *train_more_lessons.LESSONS,
    *framework_lessons.LESSONS,
    *tracker_lessons.LESSONS,
]


def each(lessons: Iterable[Lesson], share: int, place: str) -> Any:
    """Parametrize a test with lessons. Each change of `jobs/` selects `share` of them; `make soak` runs all."""
    every = {lesson.name: lesson for lesson in lessons}
    git = ("git", "rev-parse", "HEAD:jobs")
    state = subprocess.run(git, cwd=JOBS, capture_output=True, text=True, check=False).stdout
    short = sorted(name for name, lesson in every.items() if not lesson.long)
    selected = random.Random(state + place).sample(short, min(share, len(short)))  # noqa: S311
    return pytest.mark.parametrize(
        "lesson",
        [pytest.param(every[name], id=name, marks=[] if name in selected else [pytest.mark.soak]) for name in every],
    )


@contextmanager
def started(
    jobs: Jobs, request: pytest.FixtureRequest, at_once: int, env: Mapping[str, str] | None = None
) -> Iterator[dict[str, Future[Left]]]:
    """Run the lessons of the module's selected tests, `at_once` at a time; each test waits for its own lesson."""
    calls = [item.callspec for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    lessons: list[Lesson] = [call.params["lesson"] for call in calls if "lesson" in call.params]
    with ThreadPoolExecutor(at_once) as pool:
        yield {lesson.name: pool.submit(lesson.run, jobs, env or {}) for lesson in lessons}
        pool.shutdown(cancel_futures=True)
