"""What Ray knows of the process at hand, asked without importing Ray and without ever raising."""

from __future__ import annotations

import sys
from typing import Any


def is_worker() -> bool:
    """Whether Ray has started this process to run tasks or an actor; a job's driver is none."""
    try:
        worker = _worker()
        return worker is not None and worker.mode == sys.modules["ray"].WORKER_MODE
    except Exception:
        return False


def job_metadata() -> dict[str, str]:
    """The metadata of the job that this process works for; empty where Ray is not connected.

    A driver finds it in its environment too; Ray's workers have it from their core worker's job configuration alone.
    """
    try:
        worker = _worker()
        return dict(worker.core_worker.get_job_config().metadata) if worker is not None else {}
    except Exception:
        return {}


def train_ranks() -> tuple[int, int] | None:
    """World rank and local rank of a Ray Train worker; None in any other process."""
    train = sys.modules.get("ray.train")
    # Elsewhere the question itself would import ray.tune, and Ray Train V1 would answer it with a warning.
    if train is None or not is_worker():
        return None
    try:
        context = train.get_context()
        return int(context.get_world_rank()), int(context.get_local_rank())
    except Exception:
        return None


def _worker() -> Any:
    """Ray's own description of this process; None unless Ray is loaded and connected."""
    ray = sys.modules.get("ray")
    return ray.get_runtime_context().worker if ray is not None and ray.is_initialized() else None
