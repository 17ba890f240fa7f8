"""Metric and parameter names that MLflow accepts."""

from __future__ import annotations

import itertools
import re

_TAG_FIRST = "mlplatform.first_fit"
_NAME_LENGTH = 250

_NOT_IN_A_NAME = re.compile(r"[^\w\-. :/]")
"""What MLflow refuses in the name of a metric (`mlflow.utils.validation`); its letters are those of every alphabet."""


def metric_prefix(run_id: str, name: str, tracking_uri: str | None) -> str:
    """What the metrics of a job's training run are called by in MLflow: nothing for its first one, else `<name>/`.

    Two training runs of a job report the same metrics for the same steps. The first one's name is kept as a tag, so
    that a later attempt, which may leave it out, comes to the same answer.
    """
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri)
    first = client.get_run(run_id).data.tags.get(_TAG_FIRST)
    if first is None:
        client.set_tag(run_id, _TAG_FIRST, name)
    return "" if first in (None, name) else f"{name}/"


def valid_name(key: str) -> str:
    """The name itself, or the nearest that MLflow takes: letters, digits and `_-. :/`, at most 250 characters.

    It has to be a path as `os.path.normpath` leaves one, and may not begin with two dots.
    """
    parts = _NOT_IN_A_NAME.sub("_", key)[:_NAME_LENGTH].split("/")
    name = "/".join(part for part in parts if part not in ("", ".", ".."))
    return (name.lstrip("./") if name.startswith("..") else name) or "_"


def name_among(key: str, names: dict[str, str]) -> str:
    """The valid name of a key, which `names` keeps by it; where another key has that name already, with a number."""
    if key not in names:
        name, taken = valid_name(key), set(names.values())
        ends = itertools.chain([""], (f"_{number}" for number in itertools.count(2)))
        candidates = (name[: _NAME_LENGTH - len(end)] + end for end in ends)
        names[key] = next(candidate for candidate in candidates if candidate not in taken)
    return names[key]
