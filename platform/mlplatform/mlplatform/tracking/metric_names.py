"""Metric and parameter names that MLflow accepts."""

from __future__ import annotations

import itertools
import re

_TAG_FIRST = "mlplatform.first_fit"
_NAME_LENGTH = 250

_NOT_IN_A_NAME = re.compile(r"[^\w\-. :/]")
"""Characters that MLflow rejects in a metric's name (`mlflow.utils.validation`); letters of any alphabet are valid."""


def metric_prefix(run_id: str, name: str, tracking_uri: str | None) -> str:
    """Return the prefix of a training run's metrics in MLflow: none for the job's first training run, else `<name>/`.

    Two training runs of a job report the same metrics for the same steps. The name of the first one is kept as a tag,
    so that a later attempt, which may skip that run, gets the same prefixes.

    Args:
        run_id: MLflow run of the job.
        name: name of the training run.
        tracking_uri: MLflow of the run; None means the process's own.
    """
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri)
    first = client.get_run(run_id).data.tags.get(_TAG_FIRST)
    if first is None:
        client.set_tag(run_id, _TAG_FIRST, name)
    return "" if first in (None, name) else f"{name}/"


def valid_name(key: str) -> str:
    """Return the name, or the nearest that MLflow accepts: letters, digits and `_-. :/`, at most 250 characters.

    MLflow requires a path that `os.path.normpath` does not change and that does not begin with two dots.
    """
    parts = _NOT_IN_A_NAME.sub("_", key)[:_NAME_LENGTH].split("/")
    name = "/".join(part for part in parts if part not in ("", ".", ".."))
    return (name.lstrip("./") if name.startswith("..") else name) or "_"


def name_among(key: str, names: dict[str, str]) -> str:
    """Return the valid name of a key, with a number if another key has that name; `names` records key -> name."""
    if key not in names:
        name, taken = valid_name(key), set(names.values())
        ends = itertools.chain([""], (f"_{number}" for number in itertools.count(2)))
        candidates = (name[: _NAME_LENGTH - len(end)] + end for end in ends)
        names[key] = next(candidate for candidate in candidates if candidate not in taken)
    return names[key]
