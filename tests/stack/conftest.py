"""Fixtures around one stack for the whole test run: starting it takes a minute; tests leave it as they found it."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import figures
import pytest
import stand_in
import versitygw
from browser import Page, opened
from cold_share import submit_cold
from host import CHECKOUT, Stack, Trained, run, train
from persons import People, administer

from mlplatform.client.jobs import Jobs
from mlplatform_stack.env import client_settings

# Rewritten assertions show the compared values, as in test files.
pytest.register_assert_rewrite(*(file.stem for file in (Path(__file__).parents[1] / "lessons").glob("*lesson*.py")))

KEPT = CHECKOUT / ".test-stack"
"""Files of the stack that `make test-stack KEEP=1` leaves running; git ignores them."""

_stack: Stack | None = None


def pytest_addoption(parser: pytest.Parser) -> None:
    stack = parser.getgroup("stack", "the stack of containers")
    stack.addoption("--running", type=Path, metavar="FOLDER", help="test the running stack of this checkout")
    stack.addoption("--store", choices=("minio", "versitygw"), default="minio", help="S3 server of the stack")
    stack.addoption("--keep", action="store_true", help=f"leave the stack running, with its files in {KEPT.name}/")


def pytest_configure(config: pytest.Config) -> None:
    folder = config.getoption("running", None)
    if folder and not (folder / ".env").is_file():
        raise pytest.UsageError(f"{folder} has no .env: let --running name the checkout of a running stack")
    if config.getoption("store", "minio") != "minio" and (folder or config.getoption("keep", False)):
        raise pytest.UsageError("--store is for a stack that these tests start and remove")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of the S3 server that the stack does not have."""
    other = "versitygw" if config.getoption("store", "minio") == "minio" else "minio"
    left_out = [item for item in items if item.get_closest_marker(other)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if not item.get_closest_marker(other)]


@pytest.fixture(autouse=True)
def cold_share(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the jobs of some tests start cold; those about warm starts decide themselves."""
    if "warm" not in request.module.__name__:
        submit_cold(request, monkeypatch)


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Stack]:
    """The stack's files with built images and nothing started; with `--running`, the files of that stack."""
    global _stack
    run("docker", "version")
    if folder := pytestconfig.getoption("running"):
        _stack = Stack(folder.absolute())
        yield _stack
        return
    keep = pytestconfig.getoption("keep")
    if keep:
        shutil.rmtree(KEPT, ignore_errors=True)
        KEPT.mkdir()
    _stack = Stack.checked_out(KEPT if keep else tmp_path_factory.mktemp("checkout"))
    # The stack of a killed run, or a kept one, has volumes with other passwords.
    _stack.remove()
    with ExitStack() as store:
        if pytestconfig.getoption("store") == "versitygw":
            external = store.enter_context(versitygw.started())
            _stack.set_env(S3_ENDPOINT_URL=external.address, BUCKET_QUOTAS="ray=1t")
            external.write_accounts(_stack.root / "secrets")
        try:
            started = time.monotonic()
            _stack.make("build")
            print(f"\nmake build: {time.monotonic() - started:.0f} s")
            yield _stack
        finally:
            if not keep:
                _stack.remove()


@pytest.fixture(scope="session")
def running(checkout: Stack, pytestconfig: pytest.Config) -> Stack:
    """The whole stack, started by `make up`."""
    if pytestconfig.getoption("running"):
        return checkout
    started = time.monotonic()
    checkout.make("up")
    print(f"\nmake up from built images: {time.monotonic() - started:.0f} s")
    return checkout


@pytest.fixture
def stack(running: Stack) -> Stack:
    """The complete, healthy stack; restores it if the previous test damaged it."""
    if running.unhealthy():
        running.up()
    return running


@pytest.fixture
def jobs(stack: Stack) -> Iterator[Jobs]:
    """A client of the stack's gateway with a user's token."""
    with Jobs(client_settings(stack.root)) as client:
        yield client


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with opened(tmp_path / "browser") as page:
        yield page


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
    return train(running)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    figures.write(terminalreporter)
    if config.getoption("keep") and _stack:
        folder, volume = KEPT.name, _stack.settings.food11_volume
        write = terminalreporter.line
        terminalreporter.section("the stack is still running")
        write(f"test it:    make test-stack RUNNING={folder} TESTS='tests/stack/test_capacity.py -k name'")
        write(f"look at it: make -C {folder} status")
        write(f"remove it:  make -C {folder} destroy && docker volume rm {volume}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.failed and _stack:
        report.sections.append(("containers", _stack.report()))
    return report


@pytest.fixture
def team(stack: Stack) -> str:
    """A new team: teams stay, because jobs refer to them."""
    name = f"vision-{secrets.token_hex(3)}"
    printed = administer(stack, "teams", "add", name)
    assert "It does not guarantee" in printed
    return name


@pytest.fixture
def owning_team(stack: Stack, team: str) -> Iterator[str]:
    """The new team, with a guarantee of both GPUs during the test."""
    administer(stack, "teams", "set", team, "--gpus", "2")
    yield team
    administer(stack, "teams", "set", team, "--gpus", "0")


@pytest.fixture
def started(jobs: Jobs) -> Iterator[list[str]]:
    """Jobs of a test, which are stopped at its end."""
    ids: list[str] = []
    yield ids
    for job_id in ids:
        jobs.stop(job_id)
    for job_id in ids:
        jobs.wait(job_id, timeout_s=60)


@pytest.fixture
def people(stack: Stack, team: str, tmp_path: Path) -> Iterator[People]:
    """Alice, and as soon as the test names them her lead Lea, her team-mate Tom, and Bob of another team."""
    found = People(stack, team, tmp_path)
    # At once, because nearly every test needs her, and that of backups names her after the stack has stopped.
    found.log_in("alice")
    yield found
    for person in found.values():
        administer(stack, "people", "remove", person.name)
