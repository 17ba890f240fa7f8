"""The platform at a glance, as the front page shows it."""

from __future__ import annotations

from pydantic import Field

from mlplatform.api.base import Answer, Moment
from mlplatform.api.cluster import GpuUse, NodeUse
from mlplatform.api.jobs import Attempt, Links


class Tool(Answer):
    """A page of the stack."""

    title: str
    address: str = Field(description="For the browser that asks, without a slash at the end.")
    healthy: bool


class Share(Answer):
    """GPUs of a node that one job holds, or that nobody holds."""

    amount: float
    job: str = Field(default="", description="The holder; empty if they are free or if Ray does not tell.")
    user: str = Field(default="", description="The holder's user.")
    free: bool = False


class Node(NodeUse):
    """A node that runs jobs."""

    alive: bool
    shares: list[Share] = Field(description="All of its GPUs, by holder.")
    gpus: list[GpuUse] = Field(description="Load of each GPU that its agent measures.")


class QueuePlace(Answer):
    """A waiting job's place in the queue."""

    place: int = Field(ge=1)
    reasons: list[str] = Field(description="A sentence per rule that keeps it waiting.")
    latest_start: Moment | None = Field(description="If all jobs run to their limits; null: unknown.")


class ShownJob(Answer):
    """A job in the lists of the front page."""

    id: str
    user: str
    team: str | None
    relation: str = Field(
        description="Of the caller to it.",
        json_schema_extra={"enum": ["owner", "team-mate", "lead", "other", "administrator", "attempt"]},
    )
    environment: bool = Field(description="It is a dev environment.")
    state: str
    command: str = Field(description="Its beginning.")
    message: str = Field(description="Its beginning; empty while there is nothing to say.")
    requests: str = Field(description="GPUs and CPUs, those of workers included, as in `2 GPUs and 4 CPUs`.")
    cpus: float = Field(description="CPUs among these.")
    created: Moment
    ended: Moment | None
    links: Links
    stopping: bool = Field(description="Its stop was requested.")
    attempt: Attempt | None = Field(description="The last one.")
    queue: QueuePlace | None = Field(description="Null unless it waits for resources.")


class Load(Answer):
    """Measured load of a job; null where nothing measures it."""

    gpu: float | None = Field(description="Percentage of the time in which its GPUs compute, whoever uses them.")
    gpu_memory: float | None = Field(description="Bytes in use of its GPUs.")
    cpus: float | None = Field(description="CPUs in use, 1 being one core.")
    memory: float | None = Field(description="Resident bytes; a page that n processes share counts as 1/n.")


class LoadCurve(Answer):
    """Means per full minute of the last hour, the latest last; null where nothing was measured."""

    gpu: list[float | None]
    gpu_memory: list[float | None]
    cpus: list[float | None]
    memory: list[float | None]


class Overview(Answer):
    """Jobs, queue, nodes and tools; the stream sends, after the first time, only the fields that have changed."""

    you: str = Field(description="Name of the person who asks; empty with the shared token.")
    jobs: list[ShownJob] = Field(description="Running ones, waiting ones in the queue's order, and the last to end.")
    counts: dict[str, int] = Field(description="Number of all open jobs by state.")
    nodes: list[Node]
    loads: dict[str, Load] = Field(description="By id of the running job.")
    curves: dict[str, LoadCurve]
    tools: list[Tool]
    problems: list[str] = Field(description="Sentences on what is unavailable, or full.")
    queue_time: Moment | None = Field(description="Time for which the queue holds, if that is long ago.")
