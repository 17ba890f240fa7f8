"""One stack for the whole run: it takes a minute to start, and the tests leave it as they found it."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import stand_in
from host import Stack, Trained, run

from mlplatform.jobs import Jobs
from mlplatform.stack import client_settings

# Their assertions show what was compared, as those of test files do.
pytest.register_assert_rewrite(*(file.stem for file in (Path(__file__).parents[1] / "lessons").glob("*lesson*.py")))

_stack: Stack | None = None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--running", type=Path, help="use the stack of this folder, which runs, and leave it running")


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Stack]:
    """The stack's files with its images built, nothing started."""
    global _stack
    run("docker", "version")
    if folder := pytestconfig.getoption("running"):
        _stack = Stack(folder)
        yield _stack
        return
    _stack = Stack.checked_out(tmp_path_factory.mktemp("checkout"))
    # A run that was killed leaves its stack, whose volumes know other passwords.
    _stack.remove()
    try:
        started = time.monotonic()
        _stack.make("build")
        print(f"\nmake build: {time.monotonic() - started:.0f} s")
        yield _stack
    finally:
        _stack.remove()


@pytest.fixture(scope="session")
def running(checkout: Stack, pytestconfig: pytest.Config) -> Stack:
    """The whole stack, as `make up` leaves it."""
    if pytestconfig.getoption("running"):
        return checkout
    started = time.monotonic()
    checkout.make("up")
    print(f"\nmake up from built images: {time.monotonic() - started:.0f} s")
    return checkout


@pytest.fixture
def stack(running: Stack) -> Stack:
    """The stack, whole and healthy, whatever the test before did to it."""
    if running.unhealthy() or not running.containers():
        running.make("up")
    return running


@pytest.fixture
def jobs(stack: Stack) -> Iterator[Jobs]:
    """A client of the stack's gateway, with a person's token."""
    with Jobs(client_settings(stack.root)) as client:
        yield client


@pytest.fixture(scope="session")
def food11(running: Stack, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The volume of Food-11, filled by `make data` from an archive of the stand-in."""
    folder = tmp_path_factory.mktemp("food11")
    stand_in.write(folder / "photos", original=True)
    archive = shutil.make_archive(str(folder / "archive"), "zip", folder / "photos")
    print(running.make("data", f"SRC={archive}").stdout)


@pytest.fixture(scope="session")
def trained(running: Stack) -> Trained:
    """The main job, submitted from the notebook by `make smoke`."""
    output = running.make("smoke").stdout
    assert "succeeded" in output, output[-3000:]
    return Trained(re.findall(r"raysubmit_\w+", output)[0], output)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.failed and _stack:
        report.sections.append(("containers", _stack.report()))
    return report
