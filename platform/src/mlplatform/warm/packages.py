"""Packages that templates import: those of most jobs, and of Ray's own processes."""

from __future__ import annotations

BASE = (
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
)
"""Imported by the base template. Nothing here may load Ray, whose configuration belongs to a driver or a job.

`mlflow.pytorch` is left out, because it sets the level of the root logger to ERROR for the whole process
(`_lightning_autolog.py`, MLflow 3.17); the large packages that it imports are here.
"""

FORK = "mlplatform.compat.ray_fork"
"""Makes Ray work in forked processes, and checks that its random IDs differ there."""

_RAY = (
    "ray",
    FORK,
    "ray._private.worker",
    "ray._private.node",
    "ray._private.async_compat",
    "ray._private.runtime_env.setup_hook",
    "ray.train",
    "ray.train.torch",
    "ray.train.lightning",
    "ray.tune",
    "mlplatform.settings.job",
    "mlplatform.training.config",
    "mlplatform.tracking.run",
)

DRIVER = (*_RAY, "ray.job_submission")
"""Imported by the template of drivers."""

WORKER = (
    *_RAY,
    "ray.dashboard.modules.job.job_supervisor",
    "ray.train.v2._internal.execution.controller.controller",
    "ray.train.v2._internal.execution.worker_group.worker",
)
"""Imported by the template of a job's workers."""
