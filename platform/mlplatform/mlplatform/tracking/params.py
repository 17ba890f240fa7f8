"""Parameters in the form that MLflow accepts: valid names, values of bounded length, each logged once per run.

A later attempt rejoins the run of the first and logs what it logs: its host, its time, its process. MLflow refuses to
change a parameter, so the first value stays and later ones become tags.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mlplatform.compat import mlflow as mlflow_compat
from mlplatform.contract import param_tag
from mlplatform.settings.job import settings
from mlplatform.tracking.metric_names import name_among

if TYPE_CHECKING:
    from mlflow.entities import Param, RunTag


_logged: dict[str, dict[str, str]] = {}
"""Run -> name -> value that this process has logged."""

_noticed: set[str] = set()
"""Runs of which this process has printed that a parameter has changed."""


MAX_CHARACTERS = 6000
"""Length at which MLflow 3.17.2 rejects a value; its `MAX_PARAM_VAL_LENGTH` is not public."""


@dataclass
class NewParams:
    """Parameters that a run does not have yet.

    Attributes:
        values: name -> value, both as MLflow accepts them.
        renamed: key -> name, if MLflow rejects the key or another parameter has its name.
        cut: key -> length of a value that is longer than MLflow's limit.
        changed: name -> value that differs from the logged one.
    """

    values: dict[str, str] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    changed: dict[str, str] = field(default_factory=dict)


def new_params(params: Mapping[str, Any], logged: Mapping[str, str]) -> NewParams:
    """Name and truncate the parameters that are not in `logged`: MLflow rejects a request that changes a logged one."""
    new = NewParams()
    names: dict[str, str] = {}
    for key, value in params.items():
        text, name = str(value), name_among(key, names)
        if name in logged:
            if logged[name] != text[:MAX_CHARACTERS]:
                new.changed[name] = text[:MAX_CHARACTERS]
            continue
        if name != key:
            new.renamed[key] = name
        if len(text) > MAX_CHARACTERS:
            new.cut[key] = len(text)
        new.values[name] = text[:MAX_CHARACTERS]
    return new


def changed_tags(changed: Mapping[str, str]) -> dict[str, str]:
    """Return the tags that keep changed values of parameters, by the attempt that this process belongs to."""
    return {param_tag(settings().attempt, name): value for name, value in changed.items()}


def notice(changed: Iterable[str]) -> str:
    """Return the sentence that tells where changed values of parameters are."""
    names, tag = ", ".join(map(repr, changed)), param_tag(settings().attempt, "*")
    return f"The run keeps the first value of {names}; this attempt's is in its tag {tag}."


def keep_changed_params() -> None:
    """Let what a job logs again with another value, by whatever library, become a tag instead of an error."""
    mlflow_compat.keep_changed_params(_keep, _remember)


def _remember(run_id: str, params: Sequence[Param]) -> None:
    _logged.setdefault(run_id, {}).update({param.key: param.value for param in params})


def _keep(run_id: str, params: Sequence[Param], there: Mapping[str, str]) -> dict[str, RunTag]:
    """Return the tags of changed parameters; none outside of jobs, or if this process itself has changed one."""
    from mlflow.entities import RunTag

    changed = new_params({param.key: param.value for param in params}, there).changed
    own = _logged.setdefault(run_id, {})
    if settings().job_id is None or any(own.get(name, value) != value for name, value in changed.items()):
        return {}
    own.update(changed)
    if run_id not in _noticed:
        _noticed.add(run_id)
        print(notice(changed), file=sys.stderr, flush=True)
    return {name: RunTag(tag, changed[name]) for name, tag in zip(changed, changed_tags(changed), strict=True)}
