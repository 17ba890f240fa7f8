"""System metrics of this node, sampled by MLflow's own monitors and sent from a thread, and a report on its GPUs."""

from __future__ import annotations

import logging
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from mlplatform.contract import TAG_NODE
from mlplatform.settings.job import settings
from mlplatform.storage import fence
from mlplatform.tracking.identity import process_ranks
from mlplatform.tracking.scratch_run import uri_outside
from mlplatform.tracking.server import find_run, uri

if TYPE_CHECKING:
    from mlflow.entities import Run


_RETRY_SECONDS = 5.0

_STOP_SECONDS = 2.0

_TOOLS = ("nvidia-smi", "rocm-smi")

_TOOL_SECONDS = 30
"""Timeout of a tool: the first nvidia-smi on a node without persistence mode took more than ten seconds."""

_log = logging.getLogger(__name__)


class NodeMonitor:
    """Sender of `system/[<node>/]cpu_utilization_percentage` and MLflow's other system metrics, every 10 s.

    MLflow's own thread ends for good the first time MLflow is unavailable, or once the run is not RUNNING, as after
    each fit with Lightning's MLFlowLogger; this one continues until it is stopped. It respects
    MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL and MLFLOW_SYSTEM_METRICS_SAMPLES_BEFORE_LOGGING.
    """

    def __init__(
        self, find: Callable[[], Run | None], tracking_uri: str, node: str | None, except_on: str | None = None
    ):
        """Prepare the thread; `running` starts it.

        Args:
            find: returns the run to send to; called until it does, because ranks may start before their run is opened.
            tracking_uri: MLflow of the run.
            node: name to include in the metrics' names; None for the node that has opened the run.
            except_on: send nothing if the run was opened on the node with this name, which sends its own metrics.
        """
        self._find = find
        self._tracking_uri = tracking_uri
        self._node = node
        self._except_on = except_on
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mlplatform-node-metrics", daemon=True)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Send while the block runs; errors are logged, and a thread that waits for MLflow is abandoned after 2 s."""
        self._thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        try:
            run = self._wait_for_run()
            if run is not None and (self._except_on is None or run.data.tags.get(TAG_NODE) != self._except_on):
                self._send_all(run.info.run_id)
        except Exception as error:
            _log.warning("This node sends no system metrics: %s", error)

    def _wait_for_run(self) -> Run | None:
        while not self._stopped.is_set():
            try:
                if run := self._find():
                    return run
            except Exception as error:
                _log.debug("The job's run is not found yet: %s", error)
            self._stopped.wait(_RETRY_SECONDS)
        return None

    def _send_all(self, run_id: str) -> None:
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        # Its parts without its thread; the steps continue after the run's last one.
        monitor: Any = SystemMetricsMonitor(  # type: ignore[no-untyped-call]
            run_id, resume_logging=True, node_id=self._node, tracking_uri=self._tracking_uri
        )
        monitor.mlflow_logger = SimpleNamespace(record_metrics=partial(self._send, run_id))
        while self._sampled(monitor):
            try:
                monitor.publish_metrics(monitor.aggregate_metrics())
            except Exception as error:
                _log.debug("MLflow did not accept the system metrics, which the next point includes: %s", error)

    def _sampled(self, monitor: Any) -> bool:
        """Collect as many samples as make one point; False once the monitor is stopped."""
        for _ in range(monitor.samples_before_logging):
            monitor.collect_metrics()
            if self._stopped.wait(monitor.sampling_interval):
                return False
        return True

    def _send(self, run_id: str, values: Mapping[str, float], step: int) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric

        fence.check(wait=False)
        now = time.time_ns() // 1_000_000
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        MlflowClient(self._tracking_uri).log_batch(run_id, metrics=metrics)


@contextmanager
def node_metrics(run_id: str | None = None) -> Iterator[None]:
    """Send this node's system metrics to a run while the block runs, as `system/<node>/gpu_0_utilization_percentage`.

    For training functions on other nodes than the one that opened the run, which sends its own without a node's name.
    Every rank may use it: only local rank 0 of each node sends. It never raises.

    Args:
        run_id: run that the metrics go to; None means the job's run, as soon as there is one.
    """
    address = uri_outside() or uri()
    job_id = settings().job_id
    if address is None or process_ranks()[1] or not (run_id or job_id):
        yield
        return
    from mlflow import MlflowClient

    def find() -> Run | None:
        return MlflowClient(address).get_run(run_id) if run_id else find_run(str(job_id), address)

    node = socket.gethostname()
    with NodeMonitor(find, address, node, except_on=node).running():
        yield


def gpu_report() -> str:
    """Return the report of `nvidia-smi` or `rocm-smi`; one sentence if there is no GPU."""
    for tool in _TOOLS:
        if report := _output(tool):
            return report
    return f"Node {socket.gethostname()} has no GPU that nvidia-smi or rocm-smi reports.\n"


def _output(tool: str) -> str | None:
    program = shutil.which(tool)
    if program is None:
        return None
    try:
        done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=_TOOL_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 and done.stdout.strip() else None
