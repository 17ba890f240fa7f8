"""Tests of processes that are forked after `import ray`: their random IDs, and how they disconnect."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from embedded import completed

from mlplatform.client.jobs import Jobs
from mlplatform.settings.job import Settings

IMPORTS = """
import os, ray
import mlplatform_warm.ray.fork as ray_fork
import ray.train, ray.tune

def drawn():
    receiver, sender = os.pipe()
    if os.fork() == 0:
        @ray.remote
        class Actor:
            pass
        ids = [ray.ObjectRef.from_random(), ray.TaskID.for_fake_task(ray.JobID.from_int(1)), ray.NodeID.from_random()]
        os.write(sender, " ".join(each.hex() for each in ids).encode())
        os._exit(0)
    os.close(sender)
    os.wait()
    return os.read(receiver, 1000).split()
"""

# Registered before Ray's exit handler, so it is called after it.
DRIVER = """
import atexit, time
slept, sleep = [], time.sleep
atexit.register(lambda: print("slept", [seconds for seconds in slept if seconds >= 0.5]))
import ray
import mlplatform_warm.ray.fork
time.sleep = lambda seconds: (slept.append(seconds), sleep(seconds))
ray.init()
print("initialized", ray.is_initialized())
slept.clear()
"""


@pytest.fixture
def driver(reached: Settings, tmp_path: Path) -> Iterator[Callable[[str, str], list[str]]]:
    """Run a driver as a job and return the lines that it prints."""
    with Jobs(reached) as jobs:

        def lines(code: str, log_to_driver: str) -> list[str]:
            # In the code, because the platform sets it for each job.
            variable = f'import os\nos.environ["RAY_LOG_TO_DRIVER"] = "{log_to_driver}"\n'
            (tmp_path / "driver.py").write_text(variable + DRIVER + code)
            # The whole path, because `python` starts warm: with Ray's exit handler registered before this one.
            job_id = jobs.submit([sys.executable, "driver.py"], tmp_path, name="driver")
            jobs.wait(job_id, timeout_s=240)
            log = jobs.logs(job_id)
            assert "initialized True" in log, log
            return log.splitlines()

        yield lines


def output(code: str) -> subprocess.CompletedProcess[str]:
    return completed(sys.executable, "-c", IMPORTS + code, timeout=120)


def test_variable_of_job_decides_what_its_driver_prints() -> None:
    done = output(
        "import os, ray._private.ray_constants as constants\n"
        "for value in ('0', '1'):\n    os.environ['RAY_LOG_TO_DRIVER'] = value\n    print(constants.RAY_LOG_TO_DRIVER)"
    )
    assert done.stdout.split() == ["False", "True"], done.stderr


def test_forked_processes_draw_different_ids() -> None:
    done = output("ray_fork.check()\na, b = drawn(), drawn()\nprint(len(a), len({*a, *b}))")
    assert done.returncode == 0, done.stderr
    count, different = map(int, done.stdout.split())
    assert count == 3
    assert different == 2 * count


def test_used_generator_is_noticed() -> None:
    done = output("ray.ObjectRef.from_random()\nray_fork.check()")
    assert done.returncode == 1
    assert "RuntimeError: Forked processes would draw the same IDs" in done.stderr


def test_generator_is_used_without_replaced_ids() -> None:
    # As soon as this fails, Ray's own IDs differ, and the module is not needed any more.
    code = "ray.actor.ActorClassID = ray_fork._ActorClassID\n@ray.remote\nclass Actor: pass\nray_fork.check()"
    assert "would draw the same IDs" in output(code).stderr


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("code", "log_to_driver", "slept"),
    [
        ("", "0", "slept []"),
        # Messages of workers, or about them, may still arrive.
        ("", "1", "slept [0.5]"),
        ("raise ValueError", "0", "slept [0.5]"),
    ],
)
def test_driver_without_messages_disconnects_at_once(
    code: str, log_to_driver: str, slept: str, driver: Callable[[str, str], list[str]]
) -> None:
    assert slept in driver(code, log_to_driver)
