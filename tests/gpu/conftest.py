"""Fixtures around an embedded platform and a running stack on a machine with GPUs, and the report at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gpu_report
import pytest
from gpu_host import NO_GPU, Run, devices, host, torch_here
from host import Stack

from mlplatform.capacity.resources import Resources
from mlplatform.client.jobs import Jobs
from mlplatform.local.platform import LocalPlatform
from mlplatform.settings.job import Settings
from mlplatform_stack.env import client_settings


def pytest_addoption(parser: pytest.Parser) -> None:
    gpus = parser.getgroup("gpu", "machines with GPUs")
    gpus.addoption("--running", type=Path, metavar="FOLDER", help="also test the stack that `make up` started there")


def pytest_configure(config: pytest.Config) -> None:
    folder = config.getoption("running", None)
    if folder and not (folder / ".env").is_file():
        raise pytest.UsageError(f"{folder} has no .env: let --running name the checkout of a running stack")


# --- The embedded platform ---


@pytest.fixture(scope="session")
def reached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Settings of clients of an embedded platform, whose Ray detects the GPUs by itself."""
    if not torch_here().names:
        pytest.skip(f"needs a torch that sees the GPUs, which {torch_here().build} does not")
    platform = LocalPlatform(tmp_path_factory.mktemp("platform"))
    with pytest.MonkeyPatch.context() as patch:
        # Packages read it, and it changes, so no later process would start warm.
        patch.delenv("PYTEST_CURRENT_TEST")
        platform.up()
    found = platform.status()
    assert found
    yield found
    platform.down()


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A stand-in for Food-11."""
    import stand_in

    return str(stand_in.write(tmp_path_factory.mktemp("food11")))


@pytest.fixture
def run_lesson(reached: Settings, photos: str) -> Iterator[Run]:
    """Run a lesson as a job: its script, its arguments, GPUs of the entry point, a check, other options of `submit`."""
    # It imports MLflow, which the collection of these tests must do without.
    from lesson import Left, Lesson, reading

    with reading(reached.environment()), Jobs(reached) as jobs:

        def run(
            script: str,
            *arguments: str,
            gpus: float = 0,
            check: Callable[[Left], None] = lambda left: None,
            **options: Any,
        ) -> Left:
            options["resources"] = Resources(gpus=gpus)
            lesson = Lesson(script, "It runs on GPUs as it does on CPUs.", check, arguments, options=options)
            left = lesson.run(jobs, {"FOOD11_DATA_DIR": photos})
            lesson.judge(left)
            return left

        yield run


# --- The stack ---


@pytest.fixture(scope="session")
def stack(pytestconfig: pytest.Config) -> Stack:
    """The running stack that `--running` names."""
    folder = pytestconfig.getoption("running", None)
    if folder is None:
        pytest.skip("needs a running stack: `make up`, then `make test-gpu STACK=.`")
    found = Stack(folder.absolute())
    if found.settings.accelerator == "cpu":
        pytest.skip(f"needs a stack with GPUs, and {folder}/.env has ACCELERATOR=cpu")
    return found


@pytest.fixture(scope="session")
def two_workers(stack: Stack) -> Stack:
    """The running stack, if it has two workers with one GPU each."""
    layout, gpus = stack.settings.worker_layout, stack.settings.worker_gpus
    if (layout, gpus) != ("gpu", 1):
        pytest.skip(f"needs WORKER_LAYOUT=gpu and WORKER_GPUS=1, and .env has {layout} and {gpus:g}")
    return stack


@pytest.fixture(scope="module")
def jobs(stack: Stack) -> Iterator[Jobs]:
    """A client of the stack's gateway."""
    with Jobs(client_settings(stack.root)) as client:
        yield client


# --- The report ---


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was seen; on a machine without a GPU, one sentence."""
    terminalreporter.section("GPUs")
    if not host().gpus:
        terminalreporter.line(NO_GPU)
        return
    ends = [report for outcome in ("passed", "failed", "skipped") for report in terminalreporter.stats.get(outcome, [])]
    errors = [gpu_report.Outcome(report.nodeid, "error") for report in terminalreporter.stats.get("error", [])]
    try:
        torch = f"{torch_here().build}, which sees {', '.join(torch_here().names) or 'no GPU'}"
    except AssertionError as error:
        torch = str(error)
    for line in gpu_report.lines(devices(), torch, [*map(gpu_report.Outcome.of, ends), *errors]):
        terminalreporter.line(line)
