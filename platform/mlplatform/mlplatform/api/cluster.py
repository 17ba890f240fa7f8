"""Room and load of the nodes."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from mlplatform.api.base import Answer, Body

_MAX_WORKERS = 1_000_000


class Resources(Body):
    """Resources that something reserves, custom ones by Ray's names; memory in bytes."""

    # Negative amounts are left to the check, which names the shape that fits.
    model_config = ConfigDict(allow_inf_nan=False)

    cpus: float = 0
    gpus: float = 0
    custom: dict[Annotated[str, Field(min_length=1)], float] = Field(default={})


class WorkerGroup(Resources):
    """Equal workers that a job's code will request, with the resources of one worker."""

    cpus: float = 1
    count: int = Field(ge=0, le=_MAX_WORKERS)


class CapacityRequest(Body):
    """Everything that a job will request."""

    entrypoint: Resources = Resources()
    workers: WorkerGroup | None = None
    labels: dict[str, str] = Field(
        {},
        description="Label selector of the nodes that may run the entry point; the platform adds its driver label.",
    )


class Shortage(Answer):
    """Resources that a feasible job has to wait for."""

    missing: str = Field(description="For people, as in `1 GPU`.")
    users: list[str] = Field(description="Ids of the running jobs that hold such resources.")
    unavailable: list[str] = Field(description="Nodes that were lost recently.")


class Capacity(Answer):
    """The shortage of a job that the nodes can hold, now or later; null if it fits now."""

    shortage: Shortage | None


class NodeUse(Answer):
    """A node's CPUs and memory."""

    name: str
    cpus: float = Field(description="CPUs that the node declares.")
    cpus_reserved: float
    memory_used: int | None
    memory_total: int | None


class GpuUse(Answer):
    """A GPU's load, and the jobs that hold it."""

    node: str
    index: int = Field(ge=0, description="Position among the node's GPUs.")
    name: str = Field(description="Model; empty if it is not measured.")
    percent: int | None = Field(description="Share of the time in which it computes.")
    memory_used: int | None
    memory_total: int | None
    holders: dict[str, float] = Field(description="Amount by job id; up to 15 s late.")
    memory_of: dict[str, int] = Field(
        description="Bytes in use by job id; without the jobs for which nothing measures them."
    )


class HeldGpu(Answer):
    """A GPU that a job holds."""

    node: str
    index: int = Field(ge=0)
    amount: float = Field(description="What the job holds of this GPU.")
    percent: int | None = Field(description="The whole GPU's, whoever uses it.")


class JobUse(Answer):
    """A running job."""

    id: str
    user: str
    command: str
    cpus: float | None = Field(description="CPUs in use; null until its processes are measured.")
    memory: int | None = Field(description="Resident; a page that n processes share counts as 1/n.")
    gpus: list[HeldGpu]


class Utilisation(Answer):
    """Use of nodes, GPUs and jobs; measured values are null where nothing measures them, and memory is in bytes."""

    nodes: list[NodeUse]
    gpus: list[GpuUse]
    jobs: list[JobUse] = Field(description="The first 50 running jobs, in order of arrival.")
    running: int = Field(ge=0, description="Number of all running jobs.")
