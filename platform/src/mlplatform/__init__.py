"""Wires Ray jobs to tracking, checkpoints and a model registry.

Public names are imported on first use, so that `import mlplatform` and `mlplatform --help` load neither
torch nor ray nor mlflow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlplatform.capacity import Resources as Resources
    from mlplatform.capacity import WorkerGroup as WorkerGroup
    from mlplatform.datasets import dataset as dataset
    from mlplatform.errors import CapacityError as CapacityError
    from mlplatform.errors import PlatformError as PlatformError
    from mlplatform.errors import RegistryError as RegistryError
    from mlplatform.jobs import Jobs as Jobs
    from mlplatform.jobs import check_capacity as check_capacity
    from mlplatform.jobs import submit as submit
    from mlplatform.preemption import PreemptionCheckpoint as PreemptionCheckpoint
    from mlplatform.registry import best_run as best_run
    from mlplatform.registry import download as download
    from mlplatform.registry import promote as promote
    from mlplatform.registry import register as register
    from mlplatform.report_history import history as history
    from mlplatform.settings import Settings as Settings
    from mlplatform.storage import checkpoint_uri as checkpoint_uri
    from mlplatform.trackers import Tracker as Tracker
    from mlplatform.trackers import tracker as tracker
    from mlplatform.tracking import job_run as job_run
    from mlplatform.tracking import node_metrics as node_metrics
    from mlplatform.tracking import run_url as run_url
    from mlplatform.training import run_config as run_config

_HOME = {
    "CapacityError": "errors",
    "Jobs": "jobs",
    "PlatformError": "errors",
    "PreemptionCheckpoint": "preemption",
    "RegistryError": "errors",
    "Resources": "capacity",
    "Settings": "settings",
    "Tracker": "trackers",
    "WorkerGroup": "capacity",
    "best_run": "registry",
    "check_capacity": "jobs",
    "checkpoint_uri": "storage",
    "dataset": "datasets",
    "download": "registry",
    "history": "report_history",
    "job_run": "tracking",
    "node_metrics": "tracking",
    "promote": "registry",
    "register": "registry",
    "run_config": "training",
    "run_url": "tracking",
    "submit": "jobs",
    "tracker": "trackers",
}

__all__ = [
    "CapacityError",
    "Jobs",
    "PlatformError",
    "PreemptionCheckpoint",
    "RegistryError",
    "Resources",
    "Settings",
    "Tracker",
    "WorkerGroup",
    "best_run",
    "check_capacity",
    "checkpoint_uri",
    "dataset",
    "download",
    "history",
    "job_run",
    "node_metrics",
    "promote",
    "register",
    "run_config",
    "run_url",
    "submit",
    "tracker",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
