"""Metrics of the gateway for Prometheus: what this process has counted, and the numbers in the database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from sqlalchemy import Row
from starlette.responses import PlainTextResponse, Response

from mlplatform.contract import BACKUP_SUCCEEDED, BACKUP_TIMER
from mlplatform_gateway.http.access import OPEN
from mlplatform_gateway.http.auth import TokenAuth, TokenCheck
from mlplatform_gateway.http.description import errors
from mlplatform_gateway.jobs.overview import RUNNING, JobOverview, Totals
from mlplatform_gateway.logs.store import JobLogs
from mlplatform_gateway.monitoring.disks import Disk, Disks
from mlplatform_gateway.usage.report import UsageReader

PATH = "/platform/metrics"


def routes(
    jobs: JobOverview,
    usage: UsageReader,
    logs: JobLogs,
    disks: Disks,
    backups: Callable[[], Iterable[Metric]],
    token: Callable[[], str],
) -> APIRouter:
    """Return the route `GET /platform/metrics`.

    Args:
        logs: counts the bytes that nodes have sent since the start of this process, and the starts of programs.
        backups: returns `of_backups`.
        token: returns the current password of Prometheus, the only token that the route accepts.
    """
    router = APIRouter()

    @router.get(
        PATH,
        dependencies=[OPEN],
        response_class=PlainTextResponse,
        responses=errors(401, 403),
        openapi_extra={"security": [{"metrics": []}]},
    )
    async def get() -> Response:
        """Metrics in Prometheus' text format, for the token of Prometheus only; a stack has one."""
        found = [
            *_of_jobs(await jobs.totals()),
            *_of_logs(logs),
            *_of_usage(await usage.totals(datetime.now(UTC))),
            *_of_disks(await disks.read(), disks.reserve),
            *backups(),
        ]
        registry = CollectorRegistry()
        registry.register(_Collector(found))
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    for route in router.routes:
        assert isinstance(route, APIRoute)  # noqa: S101 - for mypy
        route.app = TokenAuth(route.app, TokenCheck(token), open_paths=(), open_folders=())
    return router


class _Collector:
    """Metrics in the form that `prometheus_client` writes."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        return self._metrics


def _of_jobs(totals: Totals) -> Iterator[Metric]:
    yield _gauge("jobs", "Jobs; deleted ones do not count.", ("state", "user"), totals.jobs.items())
    text = "Ended attempts of jobs; LOST: with a node or with Ray; PREEMPTED: asked to leave."
    yield _gauge("ended_attempts", text, ("outcome",), _by_one(totals.attempts))
    text = "Resources that the waiting jobs request."
    yield _gauge("waiting_resources", text, ("resource",), _by_one(totals.waiting))
    text = "Ended jobs whose runs the gateway has not ended in MLflow."
    yield _gauge("jobs_with_open_runs", text, (), [((), totals.open_runs)])
    # Not `job`, which Prometheus sets to the name of the scraped service.
    yield _gauge("running_attempts", "1 per running attempt of a job.", RUNNING, [(of, 1) for of in totals.running])


def _of_logs(logs: JobLogs) -> Iterator[Metric]:
    text = "Bytes of the jobs' logs that nodes have sent."
    yield CounterMetricFamily("mlplatform_log_bytes", text, logs.accepted_bytes)
    starts = CounterMetricFamily("mlplatform_starts", "Programs of jobs' entry points.", labels=("warm",))
    for warm in (True, False):
        starts.add_metric((str(warm).lower(),), logs.starts[warm])
    yield starts


def _of_usage(totals: Sequence[Row[Any]]) -> Iterator[Metric]:
    for name, text in (
        ("reserved_gpu_seconds", "GPU-seconds that jobs have reserved, counted until the gateway noticed each end."),
        ("reserved_cpu_seconds", "CPU-seconds that jobs have reserved, counted in the same way."),
        ("lost_gpu_seconds", "The part of the reserved GPU-seconds in attempts that the platform lost."),
        ("lost_cpu_seconds", "The part of the reserved CPU-seconds in attempts that the platform lost."),
    ):
        family = CounterMetricFamily(f"mlplatform_{name}", text, labels=("person", "team"))
        for total in totals:
            family.add_metric((total.person, total.team), getattr(total, name.removeprefix("reserved_")))
        yield family


def _of_disks(disks: Sequence[Disk], reserve: int) -> Iterator[Metric]:
    yield _gauge("disk_free_bytes", "Free space.", ("disk",), [((disk.name,), disk.free) for disk in disks])
    yield _gauge("disk_size_bytes", "All space.", ("disk",), [((disk.name,), disk.size) for disk in disks])
    yield _gauge("disk_reserve_bytes", "Free space below which new jobs are rejected.", (), [((), reserve)])


def of_backups(folder: Path | None, hours: float | None) -> Iterator[Metric]:
    """Yield the times of the stack's backups.

    Always, with 0 for none: an alert on a series that does not exist would look like one that never fires.

    Args:
        folder: where backups record their times; None without a stack.
        hours: between backups that are made on a timer; None without a timer.
    """
    succeeded, began = (_time_of(folder, name) for name in (BACKUP_SUCCEEDED, BACKUP_TIMER))
    for name, text, number in (
        ("success_timestamp_seconds", "Time of the last complete backup; 0: never.", succeeded),
        ("timer_timestamp_seconds", "Time of the first start of the timer; 0: never.", began),
        ("interval_seconds", "Time between backups on the timer; 0: no timer.", (hours or 0) * 3600),
    ):
        yield _gauge(f"backup_{name}", text, (), [((), number)])


def _time_of(folder: Path | None, name: str) -> float:
    try:
        return (folder / name).stat().st_mtime if folder else 0.0
    except FileNotFoundError:
        return 0.0


def _by_one(numbers: Mapping[str, float]) -> list[tuple[tuple[str], float]]:
    return [((label,), number) for label, number in numbers.items()]


def _gauge(name: str, text: str, labels: Sequence[str], samples: Iterable[tuple[Sequence[str], float]]) -> Metric:
    family = GaugeMetricFamily(f"mlplatform_{name}", text, labels=labels)
    for values, number in samples:
        family.add_metric(values, number)
    return family
