"""Settings of a Ray node."""

from __future__ import annotations

from pydantic import Field

from mlplatform.settings.load import EnvironmentSettings


class NodeSettings(EnvironmentSettings):
    """Settings that `ray start` reads on a node."""

    warm_start: bool = Field(True, validation_alias="MLPLATFORM_WARM_START")
    """Fork drivers and workers from templates; a job may set the variable to 0 for itself."""
