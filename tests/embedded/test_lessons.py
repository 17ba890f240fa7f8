"""The lessons of `jobs/` that do not need containers, on the embedded platform."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import pytest
import stand_in
from catalogue import each, started
from lesson import SECONDS, Left, Lesson, reading

from mlplatform.client.jobs import Jobs
from mlplatform.settings.job import Settings


@pytest.fixture(scope="module")
def runs(
    reached: Settings, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Left]]]:
    photos = {"FOOD11_DATA_DIR": str(stand_in.write(tmp_path_factory.mktemp("food11")))}
    with (
        reading(reached.environment()),
        Jobs(reached) as jobs,
        started(jobs, request, at_once=2, env=photos) as futures,
    ):
        yield futures


@each(stack=False)
def test_lesson_keeps_its_promises(lesson: Lesson, runs: dict[str, Future[Left]]) -> None:
    lesson.judge(runs[lesson.name].result(SECONDS))
