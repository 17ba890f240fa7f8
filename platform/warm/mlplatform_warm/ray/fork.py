"""Ray in forked processes; a template imports this module right after `ray`. Seen in Ray 2.60.0.

Random IDs: Ray's C++ code draws the IDs of tasks and objects from a generator that is seeded when it is first used, and
processes that are forked after that draw the same IDs: a worker that receives two tasks with one ID ends with "Check
failed: erased == 1". `@ray.remote` is the first use, because it draws the ID of an actor class, and `ray.data` has one
at import. While this module is loaded, the IDs of actor classes come from the operating system instead.

Threads: Ray sets OMP_NUM_THREADS when a worker gets its first task, before that imports anything. A forked worker has
loaded the libraries that read it, so their thread pools are resized then, unless they have this size already.

`uv run`: Ray looks for it among the ancestors of a driver, whose workers then start by the same command. Those of a
forked process are those of its client.

RAY_LOG_TO_DRIVER, which Ray reads at import, is read when it is asked for: jobs may set it, and the template has not.

Exit: before a driver disconnects, Ray's exit handler sleeps 0.5 s for messages that still arrive. A driver that ends
without an error, and does not print what its workers print, disconnects at once.
"""

from __future__ import annotations

import atexit
import os
import sys
from types import SimpleNamespace

import psutil
import ray.actor
from ray._private import ray_constants, utils, worker
from ray._private.runtime_env import uv_runtime_env_hook

from mlplatform_warm import program, threads


class RandomActorClassID(ray.actor.ActorClassID):  # type: ignore[misc]
    """ID of an actor class, drawn without Ray's generator."""

    @classmethod
    def from_random(cls) -> ray.actor.ActorClassID:
        """Return a random ID of 28 bytes."""
        return _ActorClassID(os.urandom(_ActorClassID.size()))


def check() -> None:
    """Raise RuntimeError if processes that are forked from this one would draw the same IDs."""
    first, second = _drawn_in_child(), _drawn_in_child()
    if first == second:
        raise RuntimeError("Forked processes would draw the same IDs, because an import has used Ray's generator.")


def _drawn_in_child() -> bytes:
    receiver, sender = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(sender, _ActorClassID.from_random().binary())
        os._exit(0)
    os.close(sender)
    os.waitpid(pid, 0)
    drawn = os.read(receiver, 100)
    os.close(receiver)
    return drawn


_set_number = utils.set_omp_num_threads_if_unset


def _then_resize_pools() -> bool:
    if changed := bool(_set_number()):
        threads.resize(os.environ)
    return changed


utils.set_omp_num_threads_if_unset = _then_resize_pools


class _Constants(type(ray_constants)):  # type: ignore[misc]
    @property
    def RAY_LOG_TO_DRIVER(self) -> bool:  # noqa: N802 - Ray's name
        return bool(ray_constants.env_bool("RAY_LOG_TO_DRIVER", True))


del ray_constants.RAY_LOG_TO_DRIVER
ray_constants.__class__ = _Constants


class _Client(psutil.Process):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(program.client_pid or None)


uv_runtime_env_hook.psutil = SimpleNamespace(**{**vars(psutil), "Process": _Client})


def _disconnect() -> None:
    is_driver = worker.global_worker.mode == worker.SCRIPT_MODE
    if is_driver and os.environ.get("RAY_LOG_TO_DRIVER") == "0" and not hasattr(sys, "last_value"):
        ray.shutdown()


# Exit handlers run in reverse order: this one after those of the program, and before Ray's, which finds nothing to do.
atexit.register(_disconnect)

_ActorClassID = ray.actor.ActorClassID
ray.actor.ActorClassID = RandomActorClassID
