"""The lessons of `jobs/` on the stack, submitted as users submit them from a laptop."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from catalogue import each, started
from host import Stack
from lesson import SECONDS, Left, Lesson, reading

from mlplatform.client.jobs import Jobs
from mlplatform.secrets.credentials import read_mlflow_account
from mlplatform_stack.env import client_settings


@pytest.fixture(scope="module")
def runs(running: Stack, food11: None, request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Left]]]:
    settings = client_settings(running.root)
    user, password = read_mlflow_account(running.root / "secrets" / "mlflow_person")
    account = {"MLFLOW_TRACKING_USERNAME": user, "MLFLOW_TRACKING_PASSWORD": password}
    with (
        reading(settings.environment() | account),
        Jobs(settings) as jobs,
        started(jobs, request, at_once=2) as futures,
    ):
        yield futures


@each(stack=True)
def test_lesson_keeps_its_promises(lesson: Lesson, runs: dict[str, Future[Left]]) -> None:
    lesson.judge(runs[lesson.name].result(SECONDS))
