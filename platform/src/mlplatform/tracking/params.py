"""Parameters in the form that MLflow accepts: valid names, values of bounded length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlplatform.compat import mlflow as mlflow_compat
from mlplatform.tracking.metric_names import name_among


@dataclass
class NewParams:
    """Parameters that a run does not have yet.

    Attributes:
        values: name -> value, both as MLflow accepts them.
        renamed: key -> name, if MLflow rejects the key or another parameter has its name.
        cut: key -> length of a value that is longer than MLflow's limit.
        limit: maximum length of a value in MLflow, in characters.
    """

    values: dict[str, str] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    limit: int = field(default_factory=mlflow_compat.max_param_characters)


def new_params(params: Mapping[str, Any], logged: Mapping[str, str]) -> NewParams:
    """Name and truncate the parameters that are not in `logged`: MLflow rejects a request that changes a logged one."""
    new = NewParams()
    names: dict[str, str] = {}
    for key, value in params.items():
        text, name = str(value), name_among(key, names)
        if name in logged:
            continue
        if name != key:
            new.renamed[key] = name
        if len(text) > new.limit:
            new.cut[key] = len(text)
        new.values[name] = text[: new.limit]
    return new
