"""One stack for the whole run: it takes a minute to start, and the tests leave it as they found it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
from host import Stack, Trained, run

_stack: Stack | None = None


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The stack's files with its images built, nothing started."""
    global _stack
    run("docker", "version")
    _stack = Stack.checked_out(tmp_path_factory.mktemp("checkout"))
    try:
        started = time.monotonic()
        _stack.make("build")
        print(f"\nmake build: {time.monotonic() - started:.0f} s")
        yield _stack
    finally:
        _stack.remove()


@pytest.fixture(scope="session")
def running(checkout: Stack) -> Stack:
    """The whole stack, as `make up` leaves it."""
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
