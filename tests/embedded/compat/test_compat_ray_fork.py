"""Tests of processes that are forked after `import ray`: their random IDs, and how they disconnect."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

IMPORTS = """
import os, ray
import mlplatform.compat.ray_fork as ray_fork
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
import atexit, os, time
slept, sleep = [], time.sleep
atexit.register(lambda: print("slept", [seconds for seconds in slept if seconds >= 0.5]))
import ray
import mlplatform.compat.ray_fork
time.sleep = lambda seconds: (slept.append(seconds), sleep(seconds))
ray.init(num_cpus=1, include_dashboard=False)
print("initialized", ray.is_initialized())
slept.clear()
"""


def driver(code: str, log_to_driver: str) -> str:
    """Run a driver on a Ray of its own; return its output."""
    done = subprocess.run(
        [sys.executable, "-c", DRIVER + code],
        env={**os.environ, "RAY_LOG_TO_DRIVER": log_to_driver},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "initialized True" in done.stdout, done.stderr
    return done.stdout


def output(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", IMPORTS + code], capture_output=True, text=True, timeout=120, check=False
    )


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


@pytest.mark.parametrize(
    ("code", "log_to_driver", "slept"),
    [
        ("", "0", "slept []"),
        # Messages of workers, or about them, may still arrive.
        ("", "1", "slept [0.5]"),
        ("raise ValueError", "0", "slept [0.5]"),
    ],
)
def test_driver_without_messages_disconnects_at_once(code: str, log_to_driver: str, slept: str) -> None:
    assert driver(code, log_to_driver).splitlines()[-1] == slept
