"""The services that the steps of jobs read and change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from mlplatform_gateway.jobs.containment import JobErrors
from mlplatform_gateway.jobs.store import JobStore
from mlplatform_gateway.logs.store import JobLogs
from mlplatform_gateway.mlflow.rest import AsyncMlflowRest
from mlplatform_gateway.monitoring.outages import Outages
from mlplatform_gateway.packages.store import Packages
from mlplatform_gateway.ray.cluster import Cluster
from mlplatform_gateway.ray.head import RayHead


@dataclass(frozen=True)
class Services:
    """The store of jobs, Ray's head, logs, packages and MLflow, as one value.

    Attributes:
        tracking: client of MLflow; None without MLflow.
        outages: of the services that jobs depend on.
        driver_labels: labels of the nodes that run entry points.
        errors: log of the errors of single jobs.
    """

    store: JobStore
    head: RayHead
    logs: JobLogs
    packages: Packages
    outages: Outages
    tracking: AsyncMlflowRest | None = None
    driver_labels: Mapping[str, str] = field(default_factory=dict)
    errors: JobErrors = field(default_factory=JobErrors)

    @cached_property
    def cluster(self) -> Cluster:
        """The head's latest listing."""
        return Cluster(self.head)
