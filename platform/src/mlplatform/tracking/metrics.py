"""Metrics on their way to an MLflow run: stamped once, in batches, one point for each step."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mlplatform.compat import mlflow as mlflow_compat
from mlplatform.mlflow_rest import MlflowRest, RejectedError
from mlplatform.storage import fence
from mlplatform.tracking.metric_names import name_among
from mlplatform.tracking.outbox import Outbox

_BATCH = 1000
"""Metrics a request; MLflow takes no more."""

FINAL = ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "BAD_REQUEST", "PERMISSION_DENIED")
"""MLflow's codes of what does not pass by itself."""

_DATABASE = "BAD_REQUEST"
"""Also for connections that Postgres has closed, and for those that were waited for in vain (MLflow 3.17)."""

_DOUBTS = 5
"""Times that it is asked again, a second apart."""

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
    """An MLflow run; leaves out what the run already has, as after a restore from a checkpoint.

    An attempt of the job that was replaced sends nothing any more. Its successor asks for the run's steps when the
    fence already stands, so no point comes in between.

    A server is asked over HTTP without MLflow's client: that one takes 4 s of a core to import while workers train, and
    repeats a request by itself, with pauses of up to a minute.
    """

    def __init__(self, run_id: str, tracking_uri: str | None) -> None:
        self.name = f"MLflow run {run_id}"
        self._run_id = run_id
        self._tracking_uri = tracking_uri
        self._last_steps: dict[str, int] = {}
        self._names: dict[str, str] = {}
        self._doubted = 0
        self._run: RemoteRun | LocalRun

    def open(self) -> None:
        remote = (self._tracking_uri or "").startswith(("http://", "https://"))
        address, run_id = self._tracking_uri, self._run_id
        self._run = RemoteRun(str(address), run_id) if remote else LocalRun(address, run_id)
        self._last_steps = self._run.last_steps()

    def send(self, items: Sequence[Point]) -> None:
        # What is noted as sent, only after it was: the same items come again if MLflow is away.
        last_steps = dict(self._last_steps)
        fresh = not_yet_sent([self._with_a_valid_name(point) for point in items], last_steps)
        for start in range(0, len(fresh), _BATCH):
            self._log(fresh[start : start + _BATCH])
        self._last_steps = last_steps

    def _log(self, points: Sequence[Point]) -> None:
        """Log what MLflow takes of a batch, which it refuses as a whole for one point."""
        fence.check(wait=False)
        refusal = self._run.log(points)
        if refusal is None:
            return
        # A run that takes no points at all, as a deleted one, also refuses none.
        if len(points) == 1 or self._run.log([]):
            self._doubt(refusal)
            keys = sorted({point.key for point in points})
            _log.warning("MLflow refuses metrics of run %s, %s are left out: %s", self._run_id, keys, refusal)
            return
        half = len(points) // 2
        self._log(points[:half])
        self._log(points[half:])

    def _doubt(self, refusal: str) -> None:
        """Raise, so that the points come again, where MLflow may mean its database by what it says of them."""
        if _DATABASE in refusal and self._doubted < _DOUBTS:
            self._doubted += 1
            raise ConnectionError(refusal)
        self._doubted = 0

    def _with_a_valid_name(self, point: Point) -> Point:
        is_new = point.key not in self._names
        name = name_among(point.key, self._names)
        if name == point.key:
            return point
        if is_new:
            _log.warning("Metric %r is logged as %r, because MLflow refuses its name or has it.", point.key, name)
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


def not_yet_sent(points: Sequence[Point], last_steps: dict[str, int]) -> list[Point]:
    """Leave out what was replayed after a restore, and note in `last_steps` what remains: one point for a step."""
    fresh = []
    for point in points:
        if point.step > last_steps.get(point.key, -1):
            last_steps[point.key] = point.step
            fresh.append(point)
    return fresh


class RemoteRun:
    """A run of an MLflow server; whatever is raised means that the server is away."""

    def __init__(self, tracking_uri: str, run_id: str) -> None:
        self._run_id = run_id
        self._mlflow = MlflowRest(tracking_uri)

    def last_steps(self) -> dict[str, int]:
        """The highest step that the run has for each metric."""
        answer = self._mlflow.call("GET", "runs/get", {"run_id": self._run_id})
        found = answer["run"].get("data", {}).get("metrics", [])
        return {metric["key"]: int(metric.get("step", 0)) for metric in found}

    def log(self, points: Sequence[Point]) -> str | None:
        """Send points; the reason where MLflow refuses them for good."""
        metrics = [{**asdict(point), "value": _as_json(point.value)} for point in points]
        try:
            self._mlflow.call("POST", "runs/log-batch", {"run_id": self._run_id, "metrics": metrics})
        except RejectedError as error:
            if error.status not in (400, 404):
                raise
            return f"{error.code}: {error.reason[:300]}"
        return None


class LocalRun:
    """A run of a database that MLflow's client itself opens."""

    def __init__(self, tracking_uri: str | None, run_id: str) -> None:
        from mlflow import MlflowClient

        self._run_id = run_id
        self._client = MlflowClient(tracking_uri)

    def last_steps(self) -> dict[str, int]:
        """As `RemoteRun.last_steps`."""
        return {metric.key: metric.step for metric in mlflow_compat.latest_metrics(self._client.get_run(self._run_id))}

    def log(self, points: Sequence[Point]) -> str | None:
        """As `RemoteRun.log`."""
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
    """Protocol buffers write what JSON has no number for as a string."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value
