from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cold_share import submit_cold
from embedded import CURRENT_TEST, command, processes

from mlplatform.local.platform import LocalPlatform
from mlplatform.settings.job import Settings
from mlplatform.settings.job import settings as process_settings
from mlplatform_warm import notes
from mlplatform_warm.variables import OF_DRIVERS

# Rewritten assertions show the compared values, as in test files.
pytest.register_assert_rewrite(*(file.stem for file in (Path(__file__).parents[1] / "lessons").glob("*lesson*.py")))


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Let child processes receive Ctrl-C; shells disable it for background commands, such as these tests."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """Restore the environment after each test, because processes that later tests start would inherit changes.

    MLflow's `set_registry_uri` and `set_experiment` set variables for child processes and never remove them;
    `set_experiment` also keeps the experiment's ID for this process, even for another server.
    """
    before = dict(os.environ)
    yield
    # Not emptied first: threads of a module's fixture, such as those that run the lessons, may be reading it.
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)
    if mlflow_process := sys.modules.get("mlflow.tracking.fluent"):
        mlflow_process._active_experiment_id = None


@pytest.fixture(autouse=True)
def cold_share(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the jobs of some tests start cold; those about warm starts decide themselves."""
    if "warm" not in request.module.__name__:
        submit_cold(request, monkeypatch)


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalPlatform]:
    """One embedded platform for all tests."""
    platform = LocalPlatform(tmp_path_factory.mktemp("platform"))
    with pytest.MonkeyPatch.context() as patch:
        # Packages read it, and it changes, so no later process would start warm.
        patch.delenv(CURRENT_TEST)
        # A shell's, for another program; a setting of a stack has the same name.
        patch.setenv("GRACE_SECONDS", "long")
        platform.up()
    yield platform
    platform.down()


@pytest.fixture(scope="session")
def reached(local: LocalPlatform) -> Settings:
    """Settings of clients of the platform."""
    found = local.status()
    assert found
    return found


@pytest.fixture
def environment(reached: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """Configure this process for the platform as a notebook is: by environment variables only."""
    import mlflow

    for variable, value in reached.environment().items():
        monkeypatch.setenv(variable, value)
    process_settings.cache_clear()
    mlflow.set_tracking_uri(reached.tracking_uri)
    yield reached
    mlflow.set_tracking_uri(None)
    process_settings.cache_clear()


@pytest.fixture
def as_in_jobs(local: LocalPlatform, environment: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this process the environment of the jobs' entry points, in which `python` starts warm."""
    raylet = next(process for process in processes(local) if "raylet/raylet" in command(process))
    wanted = {**raylet.environ(), **OF_DRIVERS}
    # Of Ray's C++ programs only; and these starts belong to no job.
    for name in ("LD_PRELOAD", notes.REASON):
        wanted.pop(name, None)
    # Imports in this process have set more.
    for name in os.environ.keys() - wanted.keys() - {CURRENT_TEST}:
        monkeypatch.delenv(name)
    for name, value in wanted.items():
        monkeypatch.setenv(name, value)
