"""Results of a job: its runs at MLflow with their metrics and models, and its checkpoints."""

from __future__ import annotations

from pydantic import Field

from mlplatform.api.base import Answer


class Curve(Answer):
    """Values of a metric in the order of the steps; a long one is thinned."""

    steps: list[int]
    values: list[float | None] = Field(description="Null for a value that is not finite.")


class Model(Answer):
    """A model that a run has logged."""

    name: str
    version: str | None = Field(description="Null unless it is registered.")
    page: str = Field(description="Path of its page below MLflow's address.")


class Run(Answer):
    """A run at MLflow."""

    id: str
    name: str
    status: str
    page: str = Field(description="Path of its page below MLflow's address.")
    metrics: dict[str, Curve] = Field(description="By name, those that are called a loss first; without the system's.")
    models: list[Model]


class Results(Answer):
    """Runs of a job, its own first, and its checkpoints."""

    runs: list[Run]
    checkpoints: list[str] = Field(description="The last 100 folders below `folder`, in the order of names.")
    folder: str = Field(description="Address of the job's checkpoints.")
