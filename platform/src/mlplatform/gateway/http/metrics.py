"""Metrics of the gateway for Prometheus: what this process has counted, and the numbers in the database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mlplatform.gateway.control.backups import Backups
from mlplatform.gateway.control.disks import Disk, Disks
from mlplatform.gateway.http.auth import TokenAuth, TokenCheck
from mlplatform.gateway.jobs.totals import Totals, TotalsReader
from mlplatform.gateway.logs.store import JobLogs
from mlplatform.gateway.usage.report import Total, UsageReader

PATH = "/platform/metrics"


class Metrics:
    """Counters since the start of this process, and numbers of jobs.

    Args:
        totals: reads the numbers of jobs.
        usage: reads the ledger.
        logs: counts the bytes that nodes have sent since the start of this process, and the starts of programs.
        disks: the disks without which no job is accepted.
        backups: times of the stack's backups.
    """

    def __init__(
        self,
        totals: TotalsReader,
        usage: UsageReader,
        logs: JobLogs,
        disks: Disks,
        backups: Backups | None = None,
    ) -> None:
        self._totals = totals
        self._usage = usage
        self._logs = logs
        self._disks = disks
        self._backups = backups

    def route(self, token: Callable[[], str]) -> Route:
        """Return the route `GET /platform/metrics`.

        Args:
            token: returns the current password of Prometheus, the only token that the route accepts.
        """

        async def get(_: Request) -> Response:
            numbers = CollectorRegistry()
            numbers.register(_Numbers(await self._totals.read(), self._logs))
            numbers.register(_Usage(await self._usage.totals(datetime.now(UTC))))
            numbers.register(_Space(await self._disks.read(), self._disks.reserve))
            if self._backups:
                numbers.register(_BackupTimes(self._backups))
            return Response(generate_latest(numbers), media_type=CONTENT_TYPE_PLAIN_0_0_4)

        auth = Middleware(TokenAuth, check=TokenCheck(token), open_paths=(), open_folders=())
        return Route(PATH, get, methods=["GET"], middleware=[auth])


class _Numbers:
    """Collector of the numbers of jobs at one moment."""

    def __init__(self, totals: Totals, logs: JobLogs) -> None:
        self._totals = totals
        self._logs = logs

    def collect(self) -> Iterator[Metric]:
        """Yield each metric with its samples."""
        yield _gauge("jobs", "Jobs; deleted ones do not count.", ("state", "user"), self._totals.jobs.items())
        attempts = [((outcome,), count) for outcome, count in self._totals.attempts.items()]
        yield _gauge(
            "ended_attempts",
            "Ended attempts of jobs; LOST: with a node or with Ray; PREEMPTED: asked to leave.",
            ("outcome",),
            attempts,
        )
        waiting = [((resource,), amount) for resource, amount in self._totals.waiting.items()]
        yield _gauge("waiting_resources", "Resources that the waiting jobs request.", ("resource",), waiting)
        text = "Ended jobs whose runs the gateway has not ended in MLflow."
        yield _gauge("jobs_with_open_runs", text, (), [((), self._totals.open_runs)])
        # Not `job`, which Prometheus sets to the name of the scraped service.
        labels = ("job_id", "attempt", "user", "ray_job_id", "node")
        running = [(tuple(map(str, astuple(attempt))), 1) for attempt in self._totals.running]
        yield _gauge("running_attempts", "1 per running attempt of a job.", labels, running)
        text = "Bytes of the jobs' logs that nodes have sent."
        yield CounterMetricFamily("mlplatform_log_bytes", text, self._logs.accepted_bytes)
        starts = CounterMetricFamily("mlplatform_starts", "Programs of jobs' entry points.", labels=("warm",))
        for warm in (True, False):
            starts.add_metric((str(warm).lower(),), self._logs.starts[warm])
        yield starts


class _Usage:
    """Collector of what the ledger has counted."""

    def __init__(self, totals: Sequence[Total]) -> None:
        self._totals = totals

    def collect(self) -> Iterator[Metric]:
        """Yield each metric with its samples."""
        for name, text in (
            (
                "reserved_gpu_seconds",
                "GPU-seconds that jobs have reserved, counted until the gateway noticed each end.",
            ),
            ("reserved_cpu_seconds", "CPU-seconds that jobs have reserved, counted in the same way."),
            ("lost_gpu_seconds", "The part of the reserved GPU-seconds in attempts that the platform lost."),
            ("lost_cpu_seconds", "The part of the reserved CPU-seconds in attempts that the platform lost."),
        ):
            family = CounterMetricFamily(f"mlplatform_{name}", text, labels=("person", "team"))
            for total in self._totals:
                family.add_metric((total.person, total.team), getattr(total, name.removeprefix("reserved_")))
            yield family


class _Space:
    """Collector of the space of the disks at one moment."""

    def __init__(self, disks: Sequence[Disk], reserve: int) -> None:
        self._disks = disks
        self._reserve = reserve

    def collect(self) -> Iterator[Metric]:
        """Yield each metric with its samples."""
        yield _gauge("disk_free_bytes", "Free space.", ("disk",), [((disk.name,), disk.free) for disk in self._disks])
        yield _gauge("disk_size_bytes", "All space.", ("disk",), [((disk.name,), disk.size) for disk in self._disks])
        yield _gauge("disk_reserve_bytes", "Free space below which new jobs are rejected.", (), [((), self._reserve)])


class _BackupTimes:
    """Collector of the times of backups."""

    def __init__(self, backups: Backups) -> None:
        self._backups = backups

    def collect(self) -> Iterator[Metric]:
        """Yield each metric with its sample."""
        backups = self._backups
        # Always, with 0 for none: an alert on a series that does not exist would look like one that never fires.
        for name, text, number in (
            ("success_timestamp_seconds", "Time of the last complete backup; 0: never.", backups.succeeded()),
            ("timer_timestamp_seconds", "Time of the first start of the timer; 0: never.", backups.timer_started()),
            ("interval_seconds", "Time between backups on the timer; 0: no timer.", (backups.hours or 0) * 3600),
        ):
            yield _gauge(f"backup_{name}", text, (), [((), number)])


def _gauge(name: str, text: str, labels: Sequence[str], samples: Iterable[tuple[Sequence[str], float]]) -> Metric:
    family = GaugeMetricFamily(f"mlplatform_{name}", text, labels=labels)
    for values, number in samples:
        family.add_metric(values, number)
    return family
