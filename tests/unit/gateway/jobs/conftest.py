"""A gateway whose control loop takes short steps."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from gateway_parts import ADDRESS, Gateway, StandInHead
from stored import database_in

from mlplatform.settings import job as settings_job
from mlplatform.storage.objects import open_store
from mlplatform_gateway.jobs import ending, watcher
from mlplatform_gateway.jobs import loop as control_loop
from mlplatform_gateway.jobs.attempt_tokens import AttemptTokens
from mlplatform_gateway.jobs.loop import Reconciler
from mlplatform_gateway.jobs.services import Services
from mlplatform_gateway.jobs.starting import Limits
from mlplatform_gateway.jobs.store import JobStore
from mlplatform_gateway.logs.store import JobLogs
from mlplatform_gateway.monitoring.outages import Outages
from mlplatform_gateway.packages.store import Packages
from mlplatform_gateway.queue.planner.queue import Rules
from mlplatform_gateway.ray.utilisation import UtilisationSource


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
    for folder in ("storage/mine", "files"):
        (tmp_path / folder).mkdir(parents=True)
    head = StandInHead()
    store = JobStore(database_in(tmp_path))
    logs = JobLogs(open_store(str(tmp_path / "files"), "FILES"), store.job_of)
    packages = Packages(str(tmp_path / "files"), 1000, tmp_path)
    made_up: Any = head
    use = use or UtilisationSource(made_up)
    tokens = AttemptTokens(store.engine, ADDRESS)
    services = Services(store, made_up, logs, packages, Outages({}))
    reconciler = Reconciler(services, use, tokens, Limits(4, 1200.0, rules))
    return Gateway(head, services, reconciler)


@pytest.fixture
async def gateway(idle: Gateway) -> AsyncIterator[Gateway]:
    """The same with its control loop at work, from the beginning to the end of the test."""
    async with idle.at_work():
        yield idle
