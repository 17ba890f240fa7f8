"""Ray Train wired to the job: where checkpoints go, what is retried, and metrics on their way to MLflow."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

from ray.train import CheckpointConfig, FailureConfig, RunConfig, UserCallback

# The only hook that Ray Train calls before its controller ends; it takes such callbacks beside the public kind.
from ray.train.v2._internal.execution.callback import ControllerCallback

from mlplatform import storage, tracking
from mlplatform.jobs import REPORT
from mlplatform.settings import set_default_environment, settings

if TYPE_CHECKING:
    from mlflow.entities import Metric
    from ray.train import Checkpoint

_BATCH = 1000
"""Metrics a request; MLflow takes no more."""

_FLUSH_SECONDS = 60.0
_RETRY_SECONDS = 2.0

_log = logging.getLogger(__name__)
_fit_calls = itertools.count()


def run_config(
    name: str | None = None,
    *,
    metric: str | None = None,
    mode: Literal["min", "max"] = "max",
    num_to_keep: int | None = 2,
    max_failures: int = 3,
    controller_failure_limit: int = 3,
    callbacks: Sequence[UserCallback] = (),
) -> RunConfig:
    """Ray's own `RunConfig` for a training run of this job.

    Checkpoints go to `<storage>/<job id>/<name>`, so a later attempt of the same job resumes from the last one.
    What rank 0 reports goes to the job's MLflow run, which is opened if `job_run` has not done so, and to the
    job's log, one line a report.

    Args:
        name: of this training run within the job; None counts the calls in this process from 0.
        metric: by which checkpoints are kept, a key of the reported metrics; None keeps the latest.
        mode: whether a higher or a lower `metric` is better.
        num_to_keep: checkpoints that stay in storage, beside the latest; None keeps all.
        max_failures: worker failures that are survived by starting again from the last checkpoint.
        controller_failure_limit: failures of Ray Train's own controller that are survived.
        callbacks: more of Ray Train's callbacks.

    Raises:
        StorageError, UnreachableError, AccessError: storage or MLflow cannot be used, said before training starts.
        SettingsError: a setting is not valid.
    """
    name = name or str(next(_fit_calls))
    storage_path = storage.checkpoint_uri()
    storage.check_writable(storage_path)
    # Ray Train collects reports every 2 s unless told otherwise, and makes report() wait for it.
    set_default_environment({"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2"})
    run_id = tracking.process_run()
    writer = MetricWriter(run_id, tracking.uri()) if run_id else None
    tracked: list[Any] = [ReportCallback(name, writer)]
    if writer:
        tracked.append(FlushCallback(writer))
    identity = {"MLPLATFORM_JOB_ID": settings().job_id, "MLPLATFORM_ATTEMPT": str(settings().attempt)}
    return RunConfig(
        name=name,
        storage_path=storage_path,
        failure_config=FailureConfig(max_failures=max_failures, controller_failure_limit=controller_failure_limit),
        checkpoint_config=CheckpointConfig(
            num_to_keep=num_to_keep, checkpoint_score_attribute=metric, checkpoint_score_order=mode
        ),
        callbacks=[*tracked, *callbacks],
        worker_runtime_env={"env_vars": {variable: value for variable, value in identity.items() if value}},
    )


@dataclass(frozen=True)
class Point:
    """A metric as it will be sent, however often: its time stamp is part of MLflow's key for a point."""

    key: str
    value: float
    step: int
    timestamp_ms: int


class MetricWriter:
    """Sends points to an MLflow run from a thread of its own; handing over neither waits nor raises."""

    def __init__(self, run_id: str, tracking_uri: str | None) -> None:
        self._run_id = run_id
        self._tracking_uri = tracking_uri
        self._queue: queue.SimpleQueue[list[Point] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._deadline: float | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Queue and thread belong to a process: Ray's controller gets a writer of its own."""
        return MetricWriter, (self._run_id, self._tracking_uri)

    def put(self, points: Sequence[Point]) -> None:
        """Hand points over; the thread starts with the first."""
        self._queue.put(list(points))
        if self._thread is None:
            self._thread = threading.Thread(target=self._send_all, name="mlplatform-metrics", daemon=True)
            self._thread.start()

    def close(self, timeout_s: float = _FLUSH_SECONDS) -> None:
        """Wait until everything is sent, at most `timeout_s` seconds."""
        if self._thread is None:
            return
        self._deadline = time.monotonic() + timeout_s
        self._queue.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            _log.warning("MLflow did not take all metrics of run %s within %.0f s.", self._run_id, timeout_s)

    def _send_all(self) -> None:
        from mlflow import MlflowClient

        client = MlflowClient(self._tracking_uri)
        sent = self._until_it_works(lambda: last_steps(client.get_run(self._run_id).data._metric_objs)) or {}
        open_ended = True
        while open_ended:
            open_ended, batch = self._next_batch()
            fresh = not_yet_sent(batch, sent)
            for start in range(0, len(fresh), _BATCH):
                part = [_metric(point) for point in fresh[start : start + _BATCH]]
                self._until_it_works(partial(client.log_batch, self._run_id, metrics=part))

    def _next_batch(self) -> tuple[bool, list[Point]]:
        """Wait for points, then take all there are; False once the writer is being closed."""
        batch: list[Point] = []
        item = self._queue.get()
        while item is not None:
            batch.extend(item)
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return True, batch
        return False, batch

    def _until_it_works(self, call: Any) -> Any:
        """Repeat a call to MLflow until it succeeds, is refused for good, or the writer has to end."""
        from mlflow import MlflowException

        while self._deadline is None or time.monotonic() < self._deadline:
            try:
                return call()
            except MlflowException as error:
                if error.error_code in ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST"):
                    _log.warning("MLflow refuses metrics of run %s, they are left out: %s", self._run_id, error)
                    return None
                _log.warning("MLflow does not take metrics of run %s yet: %s", self._run_id, error)
                time.sleep(_RETRY_SECONDS)
        return None


class ReportCallback(UserCallback):  # type: ignore[misc]
    """Runs in Ray Train's controller: rank 0's reports go to the job's log and to the writer, if there is one."""

    def __init__(self, name: str, writer: MetricWriter | None) -> None:
        self._name = name
        self._writer = writer
        self._reports = 0

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None) -> None:
        # What is raised here would end the training.
        try:
            values = numbers(metrics[0])
            step = step_of(values, self._reports)
            self._reports += 1
            print(f"{REPORT} {json.dumps({'run': self._name, **values, 'step': step})}", flush=True)
            if self._writer:
                now = time.time_ns() // 1_000_000
                self._writer.put([Point(key, value, step, now) for key, value in values.items() if key != "step"])
        except Exception:
            _log.exception("A report was not tracked; training goes on.")


class FlushCallback(ControllerCallback):  # type: ignore[misc]
    """Lets the writer finish before Ray ends the controller's process."""

    def __init__(self, writer: MetricWriter) -> None:
        self._writer = writer

    async def before_controller_shutdown(self) -> None:
        await asyncio.to_thread(self._writer.close)

    def before_controller_abort(self) -> None:
        self._writer.close(timeout_s=2.0)


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The reported values that MLflow can plot; text, lists and booleans stay with the checkpoint."""
    return {
        key: float(value) for key, value in metrics.items() if isinstance(value, Real) and not isinstance(value, bool)
    }


def step_of(values: Mapping[str, float], reports: int) -> int:
    """The step that a report is plotted at: its `step`, else its `epoch`, else how many came before it."""
    return int(values.get("step", values.get("epoch", reports)))


def last_steps(metrics: Sequence[Metric]) -> dict[str, int]:
    """The highest step that a run has for each metric."""
    return {metric.key: metric.step for metric in metrics}


def not_yet_sent(points: Sequence[Point], sent: dict[str, int]) -> list[Point]:
    """Leave out what was replayed after a restore, and note in `sent` what remains: one point for a step."""
    fresh = []
    for point in points:
        if point.step > sent.get(point.key, -1):
            sent[point.key] = point.step
            fresh.append(point)
    return fresh


def _metric(point: Point) -> Metric:
    from mlflow.entities import Metric

    return Metric(point.key, point.value, point.timestamp_ms, point.step)
