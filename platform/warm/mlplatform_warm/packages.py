"""Packages that templates import: those of most jobs, of Ray's own processes, and what other distributions name.

An entry point of the group `mlplatform_warm.base` names a module for the base template, one of `mlplatform_warm.ray` a
module for the templates of drivers and workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import entry_points


def _named(group: str) -> tuple[str, ...]:
    return tuple(sorted(entry.module for entry in entry_points(group=f"mlplatform_warm.{group}")))


_BASE = (
    "numpy",
    "pandas",
    "pyarrow.fs",
    "pyarrow.parquet",
    "torch",
    "torch.distributed",
    "torch.utils.data",
    "torchvision",
    "torchmetrics",
    "lightning",
    "lightning.pytorch",
    "boto3",
    "mlflow",
    "mlflow.pyfunc",
    "pytorch_lightning",
    "httpx",
    "pydantic_settings",
    "git",
    "aiohttp.web",
    "colorful",
    "jsonschema",
    "msgpack",
    "pyarrow.json",
    "pydantic.v1",
    "rich.console",
    "mlflow.system_metrics.system_metrics_monitor",
    *_named("base"),
)
"""Imported by the base template. Nothing here may load Ray, whose configuration belongs to a driver or a job.

`mlflow.pytorch` is left out, because it sets the level of the root logger to ERROR for the whole process
(`_lightning_autolog.py`, MLflow 3.17); the large packages that it imports are here.

Those from `git` on are imported by Ray's packages, or by a job's first calls.
"""

FORK = "mlplatform_warm.ray.fork"
"""Makes Ray work in forked processes, and checks that its random IDs differ there."""

_CORE = (
    "ray",
    FORK,
    "ray._private.worker",
    "ray._private.node",
    "ray._private.arrow_serialization",
    "ray._private.async_compat",
    "ray._private.runtime_env.setup_hook",
    "ray.dag",
)

_RAY = (
    *_CORE,
    "ray.train",
    "ray.train.torch",
    "ray.train.lightning",
    "ray.tune",
    *_named("ray"),
)


@dataclass(frozen=True)
class Packages:
    """Packages of a node's templates."""

    base: tuple[str, ...]
    """Imported by the base template."""

    driver: tuple[str, ...]
    """Imported by the template of drivers; empty for a node without drivers."""

    worker: tuple[str, ...]
    """Imported by the template of a job's workers."""


OF_JOBS = Packages(
    base=_BASE,
    driver=(*_RAY, "ray.job_submission"),
    worker=(
        *_RAY,
        "ray.dashboard.modules.job.job_supervisor",
        "ray.train.v2._internal.execution.controller.controller",
        "ray.train.v2._internal.execution.worker_group.worker",
    ),
)
"""Of a node that runs jobs."""

OF_HEAD = Packages(
    base=("numpy", "pandas", "pyarrow.fs", "pyarrow.json", "jsonschema", "msgpack", "pydantic", "pydantic.v1"),
    driver=(),
    worker=(*_CORE, "ray.train.v2._internal.execution.controller.placement_group_cleaner"),
)
"""Of the stack's head, where only Ray's own actors run: a training waits for Ray Train's PlacementGroupCleaner."""
