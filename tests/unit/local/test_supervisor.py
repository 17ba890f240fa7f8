"""Restarts of ended processes, with small programs in place of Ray, MLflow and the gateway."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from mlplatform.local import processes, programs, supervisor
from mlplatform.local.instance import Home, Instance
from mlplatform.local.processes import MARK, Process, is_alive, is_running
from mlplatform.local.supervisor import Supervisor

WAITS = [sys.executable, "-c", "import signal; signal.pause()"]

ENDS = [sys.executable, "-c", ""]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    (tmp_path / "logs").mkdir()
    return Home(tmp_path)


@pytest.fixture
def start(home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Instance]]:
    """Start an instance of these named commands; its processes end after the test."""
    started = []

    def start(**commands: list[str]) -> Instance:
        monkeypatch.setattr(
            programs, "PROGRAMS", {name: lambda *_, c=command: (c, {}) for name, command in commands.items()}
        )
        instance = Instance("a1b2", "http://127.0.0.1:9", "http://127.0.0.1:9", str(home.path / "ray"))
        for name in commands:
            instance = instance.with_process(programs.start(name, home, instance))
        home.save(instance)
        started.append(instance)
        return instance

    yield start
    for instance in started:
        processes.end(lambda: processes.members(instance.id, ()), at_once=True)  # noqa: B023 - called at once


def kill(instance: Instance, name: str) -> Process:
    process = instance.process(name)
    assert process
    os.kill(process.pid, signal.SIGKILL)
    os.waitpid(process.pid, 0)
    return process


def loaded(home: Home) -> Instance:
    instance = home.load()
    assert instance
    return instance


def test_ended_process_restarts_while_others_continue(home: Home, start: Callable[..., Instance]) -> None:
    instance = start(gateway=WAITS, mlflow=WAITS)
    killed = kill(instance, "gateway")
    Supervisor(home).look(instance)
    after = loaded(home)
    assert after.process("mlflow") == instance.process("mlflow")
    restarted = after.process("gateway")
    assert restarted
    assert restarted.pid != killed.pid
    assert is_alive(restarted)
    assert len(after.processes) == 2


def test_leftover_ray_processes_end_with_ray(home: Home, start: Callable[..., Instance]) -> None:
    instance = start(ray=WAITS, gateway=WAITS)
    # In a new session, like the driver of a job.
    env = {**os.environ, MARK: instance.id}
    driver = psutil.Process(subprocess.Popen(WAITS, env=env, start_new_session=True).pid)
    # For a moment after exec, Linux shows an empty environment.
    while not driver.environ():
        time.sleep(0.01)
    kill(instance, "ray")
    Supervisor(home).look(instance)
    assert not is_running(driver)
    after = loaded(home)
    assert all(map(is_alive, after.processes))
    assert after.process("gateway") == instance.process("gateway")


def test_crash_loop_backs_off(home: Home, start: Callable[..., Instance], monkeypatch: pytest.MonkeyPatch) -> None:
    instance = start(gateway=ENDS)
    clock = [0.0]
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: clock[0])
    watcher, starts, at = Supervisor(home), 0, []
    while starts < 5:
        process = loaded(home).process("gateway")
        assert process
        while is_alive(process):
            time.sleep(0.01)
        watcher.look(loaded(home))
        if loaded(home).process("gateway") != process:
            starts += 1
            at.append(clock[0])
        clock[0] += 0.5
    assert at == [0.0, 1.0, 3.0, 7.0, 15.0]
    assert instance.id == loaded(home).id


def test_supervisor_ends_if_state_names_other_instance(home: Home, start: Callable[..., Instance]) -> None:
    start(gateway=WAITS)
    supervisor.run(home, "another")
    home.state.unlink()
    supervisor.run(home, "a1b2")
