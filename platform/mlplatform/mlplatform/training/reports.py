"""Callback in Ray Train's controller that timestamps every report and passes it on; it neither waits nor raises."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from numbers import Real
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from mlplatform.compat.ray_train import (
    ControllerCallback,
    ReportCallback,
    WorkerGroupCallback,
    count_deaths_at_start,
    outlast_deadline,
    report_before_listing,
)
from mlplatform.contract import REPORT
from mlplatform.settings.environment import set_environment
from mlplatform.settings.job import settings
from mlplatform.storage import filesystem
from mlplatform.storage.checkpoints import KEPT_BY, count_reports, remove_unkept
from mlplatform.tracking.metrics import Point, stamped
from mlplatform.tracking.outbox import FLUSH_SECONDS
from mlplatform.training import leaving
from mlplatform.training.history import FIELDS

if TYPE_CHECKING:
    from ray.train import Checkpoint

    from mlplatform.tracking.outbox import Outbox


_COUNT = "mlplatform.reports"
"""Key of a checkpoint's metadata: number of reports up to and including its own."""

_UNSENT = "mlplatform.unsent"
"""Key of a checkpoint's metadata: points and reports that MLflow and the history had not received by then."""

_MAX_UNSENT = 10_000

_ABORT_SECONDS = 2.0

_log = logging.getLogger(__name__)


class Reports(ReportCallback, WorkerGroupCallback, ControllerCallback):  # type: ignore[misc]
    """Callback that writes each report to the job's log, the job's MLflow run, and the training run's history."""

    def __init__(
        self,
        name: str,
        uri: str,
        *,
        history: Outbox,
        metrics: Outbox | None,
        prefix: str = "",
        aggregate: Literal["rank0", "mean", "max"] = "rank0",
        detailed: bool = False,
        kept_by: str | None = None,
        account: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Set up the callback in the driver; Ray sends it to the controller as a pickle.

        Args:
            name: name of the training run.
            uri: address of the training run's folder.
            history: outbox of the history.
            metrics: outbox of the points, to a `RunSink`; None if nothing is tracked.
            prefix: prefix of each metric's name in MLflow.
            aggregate: how the values of all ranks are combined into one.
            detailed: record each rank's own metrics.
            kept_by: metric that decides which checkpoints are kept; recorded in each of them.
            account: the driver's account at MLflow, as variables; the controller is another process.
        """
        self._name = name
        self._uri = uri
        self._history = history
        self._metrics = metrics
        self._prefix = prefix
        self._aggregate = aggregate
        self._detailed = detailed
        self._kept_by = kept_by
        self._account = dict(account)
        self._count = 0
        self._last_steps: dict[str, int] = {}
        self._warned_of_steps = False
        self._count_at_checkpoint: int | None = None
        self._restored_at = 0
        self._started = self._last = time.monotonic()
        self._hosts: list[dict[str, Any]] = []
        self._last_report: dict[str, Any] | None = None

    def after_controller_start(self, train_run_context: Any) -> None:
        count_deaths_at_start()
        report_before_listing(Reports)
        outlast_deadline(leaving.is_asked)

    def before_worker_group_start(self, worker_group_context: Any) -> None:
        """Count reports from the checkpoint at which the workers resume, at the first start and at each restart."""
        set_environment(self._account)
        if self._count_at_checkpoint is None:
            kept = _guarded(lambda: _metadata_of_latest_checkpoint(self._uri)) or {}
            self._count_at_checkpoint = kept.get(_COUNT) or _guarded(lambda: count_reports(self._uri, _COUNT)) or 0
            _guarded(lambda: self._send_again(kept.get(_UNSENT, {})))
        _guarded(lambda: remove_unkept(self._uri), "A lost worker's files were not removed from storage")
        self._count = self._restored_at = self._count_at_checkpoint
        self._last_steps = {}
        self._started = self._last = time.monotonic()

    def after_worker_group_start(self, worker_group: Any) -> None:
        workers = [worker.metadata for worker in worker_group.get_workers()]
        self._hosts = [{"hostname": worker.hostname, "pid": worker.pid} for worker in workers]

    def after_report(self, training_report: Any, metrics: list[dict[str, Any]]) -> None:
        # An exception here would end the training.
        _guarded(lambda: self._record(metrics, training_report.checkpoint))

    async def before_controller_shutdown(self) -> None:
        if self._detailed and self._last_report:
            self._history.put([{**self._last_report, "done": True}])
        await asyncio.to_thread(self._close)

    def before_controller_abort(self) -> None:
        self._close(_ABORT_SECONDS)

    def _record(self, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None) -> None:
        values = aggregated(metrics, self._aggregate)
        step = step_of(values, self._count)
        self._count += 1
        self._warn_of_repeated_steps(step, numbers(values))
        report = {**values, "step": step, **self._fields()}
        if self._detailed:
            report.update(self._details(metrics))
        if checkpoint:
            report["checkpoint"] = f"{self._uri}/{checkpoint.path.rpartition('/')[2]}"
        if self._metrics:
            self._metrics.put(stamped({self._prefix + key: value for key, value in numbers(values).items()}, step))
        self._last_report = report
        self._deliver(report)
        if checkpoint:
            self._count_at_checkpoint = self._count
            checkpoint.update_metadata({_COUNT: self._count, _UNSENT: self._unsent(), KEPT_BY: self._kept_by})

    def _warn_of_repeated_steps(self, step: int, values: Mapping[str, float]) -> None:
        """Warn that MLflow drops further points for a step; there, a metric has one point per step."""
        keys = values.keys() - {"epoch"}
        again = sorted(key for key in keys if step <= self._last_steps.get(key, step - 1))
        if again and not self._warned_of_steps:
            self._warned_of_steps = True
            _log.warning(
                "%s is reported for step %d after step %d, and MLflow keeps only the first value of a step (the "
                'history has both); report a "step" that grows with each report, or neither "step" nor "epoch".',
                *(again[0], step, self._last_steps[again[0]]),
            )
        self._last_steps.update(dict.fromkeys(keys, step))

    def _unsent(self) -> dict[str, Any]:
        """Return the items that MLflow and storage lack. The checkpoint stores them: earlier steps are not replayed."""
        points = self._metrics.pending() if self._metrics else []
        return {
            "points": [list(astuple(point)) for point in points[-_MAX_UNSENT:]],
            "reports": self._history.pending()[-_MAX_UNSENT:],
        }

    def _send_again(self, unsent: Mapping[str, Any]) -> None:
        """Send the items that an earlier attempt left in its checkpoint; the outboxes skip those already received."""
        if self._metrics and unsent.get("points"):
            self._metrics.put([Point(*point) for point in unsent["points"]])
        if unsent.get("reports"):
            self._history.put(unsent["reports"])

    def _deliver(self, report: dict[str, Any]) -> None:
        # Values that JSON lacks become text: reports are written to files and to the checkpoint's metadata.
        report = json.loads(json.dumps(report, default=str))
        print(f"{REPORT} {json.dumps({'run': self._name, **report})}", flush=True)
        self._history.put([report])

    def _fields(self) -> dict[str, float]:
        now = time.monotonic()
        passed, self._last = now - self._last, now
        return dict(zip(FIELDS, (round(time.time(), 3), self._count, round(passed, 3)), strict=True))

    def _details(self, metrics: list[dict[str, Any]]) -> dict[str, Any]:
        ranks = [{**host, **values} for host, values in zip(self._hosts, metrics, strict=False)]
        return {
            "job_id": settings().job_id,
            "iterations_since_restore": self._count - self._restored_at,
            "time_since_restore": round(time.monotonic() - self._started, 3),
            "ranks": ranks,
        }

    def _close(self, timeout_s: float = FLUSH_SECONDS) -> None:
        for outbox in (self._metrics, self._history):
            if outbox:
                outbox.close(timeout_s)


def aggregated(metrics: Sequence[Mapping[str, Any]], how: Literal["rank0", "mean", "max"]) -> dict[str, Any]:
    """Return one value per metric from the reports of all ranks; rank 0's if it is not a number."""
    values = dict(metrics[0])
    if how == "rank0":
        return values
    combine: Callable[[list[float]], float] = fmean if how == "mean" else max
    for key in {key for of_rank in metrics for key in numbers(of_rank)} - {"step", "epoch"}:
        values[key] = combine([numbers(of_rank)[key] for of_rank in metrics if key in numbers(of_rank)])
    return values


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that MLflow can plot, without the step; text, lists and booleans are in the history only."""
    return {
        key: float(value)
        for key, value in metrics.items()
        if isinstance(value, Real) and not isinstance(value, bool) and key != "step"
    }


def step_of(values: Mapping[str, Any], reports: int) -> int:
    """Return the step at which to plot a report: its `step`, else its `epoch`, else the number of earlier reports."""
    for key in ("step", "epoch"):
        value = values.get(key)
        if isinstance(value, Real) and math.isfinite(value):
            return int(float(value))
    return reports


def _metadata_of_latest_checkpoint(uri: str) -> dict[str, Any]:
    """Read the metadata left by an earlier attempt of the job; empty without a checkpoint."""
    from ray.train import Result

    files, path = filesystem.filesystem(uri)
    try:
        checkpoint = Result.from_path(path, storage_filesystem=files).checkpoint
    except RuntimeError:
        # No such folder: nothing has been trained yet.
        return {}
    return dict(checkpoint.get_metadata()) if checkpoint else {}


def _guarded(call: Callable[[], Any], failure: str = "A report was not tracked") -> Any:
    try:
        return call()
    except Exception:
        _log.exception("%s; the training continues.", failure)
        return None
