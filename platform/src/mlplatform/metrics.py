"""Metrics on their way to an MLflow run: stamped once, in batches, one point for each step."""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mlplatform.outbox import Outbox

_BATCH = 1000
"""Metrics a request; MLflow takes no more."""

_REQUEST_SECONDS = 30
_NAME_BYTES = 250
_NOT_IN_A_NAME = re.compile(r"[^\w\-. :/]", re.ASCII)
"""What MLflow refuses in the name of a metric (`mlflow.utils.validation`)."""

_TAG_FIRST = "mlplatform.first_fit"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Point:
    """A metric as it will be sent, however often: its time stamp is part of MLflow's key for a point."""

    key: str
    value: float
    step: int
    timestamp: int
    """Milliseconds since 1970."""


class RunSink:
    """An MLflow run; leaves out what the run already has, as after a restore from a checkpoint."""

    def __init__(self, run_id: str, tracking_uri: str | None) -> None:
        self.name = f"MLflow run {run_id}"
        self._run_id = run_id
        self._tracking_uri = tracking_uri or ""
        self._last_steps: dict[str, int] = {}
        self._renamed: dict[str, str] = {}

    def open(self) -> None:
        self._last_steps = _last_steps(self._tracking_uri, self._run_id)

    def send(self, items: Sequence[Point]) -> None:
        # What is noted as sent, only after it was: the same items come again if MLflow is away.
        last_steps = dict(self._last_steps)
        fresh = not_yet_sent([self._with_a_valid_name(point) for point in items], last_steps)
        for start in range(0, len(fresh), _BATCH):
            if refusal := _log_batch(self._tracking_uri, self._run_id, fresh[start : start + _BATCH]):
                _log.warning("MLflow refuses metrics of run %s, they are left out: %s", self._run_id, refusal)
        self._last_steps = last_steps

    def _with_a_valid_name(self, point: Point) -> Point:
        name = valid_name(point.key)
        if name == point.key:
            return point
        if point.key not in self._renamed:
            self._renamed[point.key] = name
            _log.warning("Metric %r is logged as %r, because MLflow refuses its name.", point.key, name)
        return Point(name, point.value, point.step, point.timestamp)


class MetricWriter(Outbox):
    """Sends points to an MLflow run from a thread of its own; handing over neither waits nor raises."""

    def __init__(self, run_id: str, tracking_uri: str | None) -> None:
        super().__init__(RunSink(run_id, tracking_uri))
        self._arguments = (run_id, tracking_uri)

    def __reduce__(self) -> tuple[Any, ...]:
        return MetricWriter, self._arguments

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Stamp values with the present time and hand them over."""
        now = time.time_ns() // 1_000_000
        self.put([Point(key, value, step, now) for key, value in values.items()])


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
    """The name itself, or the nearest that MLflow takes: letters, digits and `_-. :/`, at most 250 bytes."""
    return _NOT_IN_A_NAME.sub("_", key)[:_NAME_BYTES].strip("/. ") or "_"


def not_yet_sent(points: Sequence[Point], last_steps: dict[str, int]) -> list[Point]:
    """Leave out what was replayed after a restore, and note in `last_steps` what remains: one point for a step."""
    fresh = []
    for point in points:
        if point.step > last_steps.get(point.key, -1):
            last_steps[point.key] = point.step
            fresh.append(point)
    return fresh


def _last_steps(tracking_uri: str, run_id: str) -> dict[str, int]:
    """The highest step that a run has for each metric."""
    if _is_remote(tracking_uri):
        answer = _request(tracking_uri, "runs/get", "GET", params={"run_id": run_id})
        if answer.status_code != 200:
            raise ConnectionError(_reason(answer))
        found = answer.json()["run"].get("data", {}).get("metrics", [])
        return {metric["key"]: int(metric.get("step", 0)) for metric in found}
    from mlflow import MlflowClient

    metrics = MlflowClient(tracking_uri or None).get_run(run_id).data._metric_objs
    return {metric.key: metric.step for metric in metrics}


def _log_batch(tracking_uri: str, run_id: str, points: Sequence[Point]) -> str | None:
    """Send points; the reason where MLflow refuses them for good, an exception where it is away."""
    if _is_remote(tracking_uri):
        metrics = [{**asdict(point), "value": _as_json(point.value)} for point in points]
        answer = _request(tracking_uri, "runs/log-batch", "POST", json={"run_id": run_id, "metrics": metrics})
        if answer.status_code in (400, 404):
            return _reason(answer)
        if answer.status_code != 200:
            raise ConnectionError(_reason(answer))
        return None
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    MlflowClient(tracking_uri or None).log_batch(
        run_id, metrics=[Metric(point.key, point.value, point.timestamp, point.step) for point in points]
    )
    return None


def _request(tracking_uri: str, path: str, method: str, **options: Any) -> Any:
    """One request without MLflow's own retries: they pause for up to a minute, and are set for a whole process."""
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    return http_request(  # type: ignore[no-untyped-call]
        get_default_host_creds(tracking_uri),  # type: ignore[no-untyped-call]
        f"/api/2.0/mlflow/{path}",
        method,
        max_retries=0,
        timeout=_REQUEST_SECONDS,
        raise_on_status=False,
        **options,
    )


def _is_remote(tracking_uri: str) -> bool:
    return tracking_uri.startswith(("http://", "https://"))


def _reason(answer: Any) -> str:
    return f"{answer.status_code}, {answer.text.strip()[:300]}"


def _as_json(value: float) -> float | str:
    """Protocol buffers write what JSON has no number for as a string."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value
