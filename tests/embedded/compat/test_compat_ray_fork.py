"""Tests of processes that are forked after `import ray`: their random IDs."""

from __future__ import annotations

import subprocess
import sys

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
