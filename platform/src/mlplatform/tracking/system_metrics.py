"""System metrics of one node, sampled by MLflow's own monitors and sent to a run from a thread."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mlplatform.compat.mlflow import SystemMetricsSampler
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

_log = logging.getLogger(__name__)


class NodeMonitor:
    """Sends `system/[<node>/]cpu_utilization_percentage` and its siblings, MLflow's own names, every 10 s.

    MLflow's own thread ends for good when MLflow is away once, and as soon as the run is not RUNNING, which Lightning's
    MLFlowLogger makes it after each fit; this one goes on until it is stopped. MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL
    and MLFLOW_SYSTEM_METRICS_SAMPLES_BEFORE_LOGGING are heeded.
    """

    def __init__(self, find: Callable[[], Run | None], tracking_uri: str, node: str | None, but_on: str | None = None):
        """
        Args:
            find: gives the run to send to; asked until it does, for a run may be opened later than its ranks start.
            tracking_uri: where the run is.
            node: name that goes into the metrics' names; None for the node that has opened the run.
            but_on: send nothing where the run was opened on the node of this name, which sends its own.
        """
        self._find = find
        self._tracking_uri = tracking_uri
        self._node = node
        self._but_on = but_on
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mlplatform-node-metrics", daemon=True)

    def start(self) -> None:
        """Start the thread; nothing that goes wrong in it reaches the caller."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; one that waits for MLflow is left to itself."""
        self._stopped.set()
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        try:
            run = self._wait_for_run()
            if run is not None and (self._but_on is None or run.data.tags.get(TAG_NODE) != self._but_on):
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
        sampler = SystemMetricsSampler(run_id, self._node, self._tracking_uri)
        while self._sampled(sampler):
            try:
                self._send(sampler, run_id)
            except Exception as error:
                _log.debug("MLflow did not accept a sample of the system metrics: %s", error)

    def _sampled(self, sampler: SystemMetricsSampler) -> bool:
        """Collect as many samples as make one point; False once the monitor is stopped."""
        for _ in range(sampler.samples_per_point):
            sampler.sample()
            if self._stopped.wait(sampler.interval_s):
                return False
        return True

    def _send(self, sampler: SystemMetricsSampler, run_id: str) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric

        fence.check(wait=False)
        now = time.time_ns() // 1_000_000
        step, values = sampler.point()
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        MlflowClient(self._tracking_uri).log_batch(run_id, metrics=metrics)


@contextmanager
def node_metrics(run_id: str | None = None) -> Iterator[None]:
    """Send this node's system metrics to a run while the block runs, as `system/<node>/gpu_0_utilization_percentage`.

    For training functions whose nodes are others than the one that opened the run, which sends its own without a name
    in between. Every rank may use it: one a node, that of local rank 0, sends. Nothing that goes wrong is raised.

    Args:
        run_id: None takes the job's run, as soon as there is one.
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
    monitor = NodeMonitor(find, address, node, but_on=node)
    monitor.start()
    try:
        yield
    finally:
        monitor.stop()
