"""Delivery of metrics to an MLflow run: timestamped once, in batches, one point per step."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mlplatform.client.mlflow_rest import MlflowRest, RejectedError
from mlplatform.compat import mlflow as mlflow_compat
from mlplatform.storage import fence
from mlplatform.tracking.metric_names import name_among

_BATCH = 1000
"""Metrics per request; MLflow accepts no more."""

FINAL = ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "BAD_REQUEST", "PERMISSION_DENIED")
"""MLflow's error codes that retrying does not fix."""

_DATABASE = "BAD_REQUEST"
"""MLflow 3.17 also answers this if Postgres has closed the connection, or if no pooled one became free in time."""

_DOUBTS = 5
"""Retries after `_DATABASE`, one second apart."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Point:
    """A metric with a timestamp, unchanged in every retry because it is part of MLflow's key for a point."""

    key: str
    value: float
    step: int
    timestamp: int
    """Time in milliseconds since 1970."""


class RunSink:
    """An MLflow run; skips points that the run already has, as after a restore from a checkpoint.

    A replaced attempt of the job sends nothing more. Its successor reads the run's steps after it has set
    the fence, so no point arrives in between.

    A server is reached without MLflow's client: importing it takes 4 s of CPU time while workers train, and it retries
    requests by itself, with pauses of up to a minute.
    """

    def __init__(self, run_id: str, tracking_uri: str | None) -> None:
        self.name = f"MLflow run {run_id}"
        self._run_id = run_id
        self._tracking_uri = tracking_uri
        self._last_steps: dict[str, int] = {}
        self._names: dict[str, str] = {}
        self._doubted = 0
        self._run: RemoteRun | LocalRun

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the connection, which stays with this process."""
        return RunSink, (self._run_id, self._tracking_uri)

    def open(self) -> None:
        remote = (self._tracking_uri or "").startswith(("http://", "https://"))
        address, run_id = self._tracking_uri, self._run_id
        self._run = RemoteRun(str(address), run_id) if remote else LocalRun(address, run_id)
        self._last_steps = self._run.last_steps()

    def send(self, items: Sequence[Point]) -> None:
        # Steps count as sent only after the request: the same items are delivered again if MLflow is unavailable.
        last_steps = dict(self._last_steps)
        fresh = not_yet_sent([self._with_a_valid_name(point) for point in items], last_steps)
        for start in range(0, len(fresh), _BATCH):
            self._log(fresh[start : start + _BATCH])
        self._last_steps = last_steps
        # Not per request: while a bad point is sent again with others, requests for the others succeed.
        self._doubted = 0

    def _log(self, points: Sequence[Point]) -> None:
        """Log the points of a batch that MLflow accepts; for a single bad point it rejects the whole batch."""
        fence.check(wait=False)
        rejection = self._run.log(points)
        if rejection is None:
            return
        # A run that accepts no points at all, such as a deleted one, also rejects an empty batch.
        if len(points) == 1 or self._run.log([]):
            self._doubt(rejection)
            keys = sorted({point.key for point in points})
            _log.warning(
                "MLflow rejected %d points of run %s, metrics %s; they were dropped: %s",
                len(points),
                self._run_id,
                ", ".join(map(repr, keys)),
                rejection,
            )
            return
        half = len(points) // 2
        self._log(points[:half])
        self._log(points[half:])

    def _doubt(self, rejection: str) -> None:
        """Raise, to have the points sent again, if the rejection may be about MLflow's database and not the points."""
        if _DATABASE in rejection and self._doubted < _DOUBTS:
            self._doubted += 1
            raise ConnectionError(rejection)
        self._doubted = 0

    def _with_a_valid_name(self, point: Point) -> Point:
        is_new = point.key not in self._names
        name = name_among(point.key, self._names)
        if name == point.key:
            return point
        if is_new:
            _log.warning("Metric %r is logged as %r: MLflow rejects its name or has it already.", point.key, name)
        return Point(name, point.value, point.step, point.timestamp)


def stamped(values: Mapping[str, float], step: int) -> list[Point]:
    """Return values as points of a step, with the current time."""
    now = time.time_ns() // 1_000_000
    return [Point(key, value, step, now) for key, value in values.items()]


def not_yet_sent(points: Sequence[Point], last_steps: dict[str, int]) -> list[Point]:
    """Return the points without those that a restore replayed, and add their steps to `last_steps`."""
    fresh = []
    for point in points:
        if point.step > last_steps.get(point.key, -1):
            last_steps[point.key] = point.step
            fresh.append(point)
    return fresh


class RemoteRun:
    """A run of an MLflow server; every exception means that the server is unavailable."""

    def __init__(self, tracking_uri: str, run_id: str) -> None:
        self._run_id = run_id
        self._mlflow = MlflowRest(tracking_uri)

    def last_steps(self) -> dict[str, int]:
        """Return the highest step that the run has of each metric."""
        answer = self._mlflow.call("GET", "runs/get", {"run_id": self._run_id})
        found = answer["run"].get("data", {}).get("metrics", [])
        return {metric["key"]: int(metric.get("step", 0)) for metric in found}

    def log(self, points: Sequence[Point]) -> str | None:
        """Send points; return the reason if MLflow rejects them and retrying does not help."""
        metrics = [{**asdict(point), "value": _as_json(point.value)} for point in points]
        try:
            self._mlflow.call("POST", "runs/log-batch", {"run_id": self._run_id, "metrics": metrics})
        except RejectedError as error:
            if error.status not in (400, 404):
                raise
            return f"{error.code}: {error.reason[:300]}"
        return None


class LocalRun:
    """A run in a database, which MLflow's client opens itself."""

    def __init__(self, tracking_uri: str | None, run_id: str) -> None:
        from mlflow import MlflowClient

        self._run_id = run_id
        self._client = MlflowClient(tracking_uri)

    def last_steps(self) -> dict[str, int]:
        """Do the same as `RemoteRun.last_steps`."""
        return {metric.key: metric.step for metric in mlflow_compat.latest_metrics(self._client.get_run(self._run_id))}

    def log(self, points: Sequence[Point]) -> str | None:
        """Do the same as `RemoteRun.log`."""
        from mlflow import MlflowException
        from mlflow.entities import Metric

        metrics = [Metric(point.key, point.value, point.timestamp, point.step) for point in points]
        try:
            self._client.log_batch(self._run_id, metrics=metrics)
        except MlflowException as error:
            if error.error_code not in FINAL:
                raise
            return f"{error.error_code}: {error}"
        return None


def _as_json(value: float) -> float | str:
    """Return a number for JSON; as in protocol buffers, NaN and infinity, which JSON lacks, become strings."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value
