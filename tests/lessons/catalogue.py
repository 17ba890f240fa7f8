"""Catalogue of all lessons in `jobs/`, and the choice of those that CI runs for a given commit."""

from __future__ import annotations

import inspect
import subprocess
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import food11_lessons
import food11_ray_lessons
import framework_lessons
import pytest
import selection
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


def digest(lesson: Lesson) -> str:
    """Digest of everything that decides whether a lesson passes, except the platform itself."""
    check = selection.definition(Path(inspect.getfile(lesson.check)), lesson.check.__qualname__.partition(".")[0])
    return selection.digest(JOBS / lesson.script, *lesson.arguments, str(lesson.options), lesson.status, check)


def state() -> str:
    """The commit's lessons and platform; lessons are drawn again after each change of these."""
    git = ("git", "rev-parse", "HEAD:./", "HEAD:platform/src")
    return subprocess.run(git, cwd=JOBS, capture_output=True, text=True, check=False).stdout


def each(share: int, place: str, can_run: Callable[[Lesson], bool], own: Callable[[Lesson], bool]) -> Any:
    """Parametrize a test with lessons; those that this commit does not select are marked `soak`, as in `costly`.

    Args:
        share: number of lessons to draw, besides those that changed.
        place: name of the tier, so that the tiers draw different lessons.
        can_run: whether the tier can run a lesson.
        own: whether the tier runs a lesson when it changes.
    """
    lessons = {lesson.name: lesson for lesson in LESSONS if can_run(lesson)}
    digests, passed = {name: digest(lesson) for name, lesson in lessons.items()}, selection.read()
    selected = selection.select(
        digests,
        own=[name for name, lesson in lessons.items() if own(lesson)],
        long=[name for name, lesson in lessons.items() if lesson.long],
        passed=passed,
        share=share,
        seed=state() + place,
    )
    if selected.left:
        warnings.warn(f"Changed lessons that are left to `make soak`: {', '.join(selected.left)}", stacklevel=2)
    left = lessons.keys() - {*selected.changed, *selected.drawn}
    marks = {
        name: ([pytest.mark.soak(left=True)] if name in left else [])
        + ([pytest.mark.passed] if passed.get(name) == digests[name] else [])
        for name in lessons
    }
    return pytest.mark.parametrize(
        "lesson", [pytest.param(lesson, id=name, marks=marks[name]) for name, lesson in lessons.items()]
    )


def record(lesson: Lesson, config: pytest.Config) -> None:
    """Record that a lesson has passed in its current state, if this is `make soak`."""
    if "lesson" in config.option.markexpr:
        selection.record(lesson.name, digest(lesson), known=[each.name for each in LESSONS])


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
