"""A gateway whose control loop takes short steps."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from gateway_parts import Gateway, parts
from stored import database_in

from mlplatform.settings import job as settings_job
from mlplatform_gateway.jobs import ending, watcher
from mlplatform_gateway.jobs import loop as control_loop
from mlplatform_gateway.queue.planner.queue import Rules


@pytest.fixture
def rules() -> Rules:
    """Durations of the queue."""
    return Rules()


@pytest.fixture
def use() -> Any:
    """Source of what the nodes measure; None for that of the head."""
    return None


@pytest.fixture
def idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rules: Rules, use: Any) -> Gateway:
    """A gateway whose control loop does not run yet."""
    monkeypatch.setenv("MLPLATFORM_STORAGE", str(tmp_path / "storage"))
    settings_job.settings.cache_clear()
    for seconds in ("_STEP_SECONDS", "_RETRY_SECONDS"):
        monkeypatch.setattr(control_loop, seconds, 0.05)
    monkeypatch.setattr(watcher, "_CHECK_SECONDS", 0.05)
    monkeypatch.setattr(ending, "_SETTLE_SECONDS", 0.05)
    monkeypatch.setattr(ending, "_SETTLE_LOST_SECONDS", 0.05)
    (tmp_path / "storage/mine").mkdir(parents=True)
    database_in(tmp_path)
    return parts(tmp_path, rules, use)


@pytest.fixture
async def gateway(idle: Gateway) -> AsyncIterator[Gateway]:
    """The same with its control loop at work, from the beginning to the end of the test."""
    async with idle.at_work():
        yield idle
