"""Catalogue of all lessons in `jobs/`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from lesson import Left, Lesson

from mlplatform.client.jobs import Jobs

LESSONS: list[Lesson] = [
    *food11_lessons.LESSONS,
    *food11_ray_lessons.LESSONS,
    *train_lessons.LESSONS,
    *train_more_lessons.LESSONS,
    *framework_lessons.LESSONS,
    *tracker_lessons.LESSONS,
]


def each(stack: bool) -> Any:
    """Parametrize a test with the lessons that a tier runs: the stack only those that need it."""
    lessons = [lesson for lesson in LESSONS if lesson.stack_only == stack]
    marks = [[] if lesson.always else [pytest.mark.nightly] for lesson in lessons]
    cases = zip(lessons, marks, strict=True)
    return pytest.mark.parametrize("lesson", [pytest.param(each, id=each.name, marks=of_it) for each, of_it in cases])


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
