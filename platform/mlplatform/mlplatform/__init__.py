"""Python package that connects Ray jobs to tracking, checkpoints and a model registry.

Public names are imported on first use, so that `import mlplatform` and `mlplatform --help` load neither
torch nor ray nor mlflow.
"""

from __future__ import annotations

from importlib import import_module

# Not from `typing`: each start of Python imports this file (`training.names`), which takes 1 ms without it.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any as Any

    from mlplatform.capacity.resources import Resources as Resources
    from mlplatform.capacity.resources import WorkerGroup as WorkerGroup
    from mlplatform.client.jobs import Jobs as Jobs
    from mlplatform.client.jobs import check_capacity as check_capacity
    from mlplatform.client.jobs import submit as submit
    from mlplatform.errors import CapacityError as CapacityError
    from mlplatform.errors import PlatformError as PlatformError
    from mlplatform.errors import RegistryError as RegistryError
    from mlplatform.registry.datasets import dataset as dataset
    from mlplatform.registry.models import best_run as best_run
    from mlplatform.registry.models import download as download
    from mlplatform.registry.models import promote as promote
    from mlplatform.registry.models import register as register
    from mlplatform.registry.publish import publish_model as publish_model
    from mlplatform.settings.job import Settings as Settings
    from mlplatform.storage.addresses import checkpoint_uri as checkpoint_uri
    from mlplatform.tracking.other_trackers import Tracker as Tracker
    from mlplatform.tracking.other_trackers import tracker as tracker
    from mlplatform.tracking.run import job_run as job_run
    from mlplatform.tracking.server import run_url as run_url
    from mlplatform.tracking.system_metrics import node_metrics as node_metrics
    from mlplatform.training.config import run_config as run_config
    from mlplatform.training.history import history as history
    from mlplatform.training.preemption import PreemptionCheckpoint as PreemptionCheckpoint
    from mlplatform.training.resume import resume_path as resume_path

_HOME = {
    "CapacityError": "errors",
    "Jobs": "client.jobs",
    "PlatformError": "errors",
    "PreemptionCheckpoint": "training.preemption",
    "RegistryError": "errors",
    "Resources": "capacity.resources",
    "Settings": "settings.job",
    "Tracker": "tracking.other_trackers",
    "WorkerGroup": "capacity.resources",
    "best_run": "registry.models",
    "check_capacity": "client.jobs",
    "checkpoint_uri": "storage.addresses",
    "dataset": "registry.datasets",
    "download": "registry.models",
    "history": "training.history",
    "job_run": "tracking.run",
    "node_metrics": "tracking.system_metrics",
    "promote": "registry.models",
    "publish_model": "registry.publish",
    "register": "registry.models",
    "resume_path": "training.resume",
    "run_config": "training.config",
    "run_url": "tracking.server",
    "submit": "client.jobs",
    "tracker": "tracking.other_trackers",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name == "tuning":  # a public module, for `mlplatform.tuning` without an import of it
        return import_module(f"{__name__}.tuning")
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
