"""Ray's description of the current process and of its end, read without importing Ray; seen in Ray 2.60.0.

Settings call this in every process, before and without a connection to Ray, so nothing here raises. A query that fails
while Ray is connected is logged once per process: after an upgrade of Ray, the job's id and user could be missing.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Variable with the job's configuration as JSON, which Ray sets for each driver. The public runtime context has no
metadata of the job (`ray._private.runtime_env.constants`)."""

_EXIT_MESSAGE = "ray_terminate_msg"
"""Attribute of the SystemExit with which Ray ends a process."""

_RAISED_IN_HANDLER = "SystemExit is raised"

_Answer = TypeVar("_Answer")

_log = logging.getLogger(__name__)


def is_worker() -> bool:
    """Return whether Ray has started this process to run tasks or an actor; a job's driver is not one."""
    return bool(
        _answer("whether this process is a worker", lambda worker: worker.mode == sys.modules["ray"].WORKER_MODE)
    )


def job_metadata() -> dict[str, str]:
    """Return the metadata of the job that this process works for; empty if Ray is not connected.

    A driver also has it in its environment; Ray's workers have it only in their core worker's job configuration.
    """
    return _answer("the job's metadata", lambda worker: dict(worker.core_worker.get_job_config().metadata)) or {}


def train_ranks() -> tuple[int, int] | None:
    """Return world rank and local rank of a Ray Train worker; None in any other process."""
    train = sys.modules.get("ray.train")
    # Elsewhere the call itself would import ray.tune, and Ray Train V1 would answer it with a warning.
    if train is None or not is_worker():
        return None
    return _answer("the rank of this worker", lambda _: _ranks(train))


def _ranks(train: Any) -> tuple[int, int] | None:
    try:
        context = train.get_context()
        return int(context.get_world_rank()), int(context.get_local_rank())
    except RuntimeError:
        # A worker, but not of Ray Train (`train_fn_utils.get_train_fn_utils`).
        return None


def is_exit_from_signal_handler(error: SystemExit) -> bool:
    """Return whether Ray raised this exit because a signal handler raised SystemExit while Ray waited in C++.

    Ray replaces the handler's exit with one of code 1, so only its message tells them apart (`check_signals` and
    `raise_sys_exit_with_custom_error_message` in `_raylet.pyx`). No public API reports the cause of an exit.
    """
    return str(getattr(error, _EXIT_MESSAGE, "")).startswith(_RAISED_IN_HANDLER)


def _answer(question: str, ask: Callable[[Any], _Answer]) -> _Answer | None:
    """Return what Ray's own description of this process answers; None unless Ray is connected and can tell."""
    try:
        ray = sys.modules.get("ray")
        return ask(ray.get_runtime_context().worker) if ray is not None and ray.is_initialized() else None
    except Exception as error:
        _report(question, repr(error))
        return None


@cache
def _report(question: str, error: str) -> None:
    """Log a query that failed; the same one with the same error once per process."""
    _log.warning("Ray could not report %s (%s); continuing without it.", question, error)
