"""Rows about the gateway: one request, many jobs at once, a long list of jobs."""

from __future__ import annotations

import statistics
import time
from contextlib import nullcontext

from full_tables import many_jobs
from harness import Row
from workbench import Bench

BURST, QUICK_BURST = 160, 8
LISTED = 20_000
"""Ended jobs in the list."""

REQUESTS = 10
"""Requests for the list per measurement, which is their median."""


def gateway(bench: Bench) -> list[Row]:
    """Requests through the gateway compared with requests to the head."""
    measured = bench.gateway(f"--pairs={bench.pairs}", *(["--quick"] if bench.quick else []))
    allowed = [(ours, max(1.1 * theirs, theirs + 0.05)) for ours, theirs in measured["submit"]]
    return [
        Row("gateway-submit: submit_job through the gateway by the bare head's time plus 50 ms", "s", allowed, 1.0),
        Row("log-follow: lateness of a line through the gateway by the bare head's", "s", measured["follow"], 1.5),
    ]


def burst(bench: Bench) -> list[Row]:
    """Many jobs at once, through the gateway and through the bare head."""
    count = QUICK_BURST if bench.quick else BURST
    measured = bench.gateway(f"--pairs={bench.long_pairs}", f"--burst={count}")
    accepted = [(ours[0], 3.0) for ours, _ in measured]
    rates = [(count / ours[1], count / theirs[1]) for ours, theirs in measured]
    return [
        Row(f"burst: {count} trivial jobs through the gateway by the bare head", "jobs/s", rates, 2.0, "higher"),
        Row(f"burst-accepted: until all {count} are accepted, by 3 s", "s", accepted, 1.0),
    ]


def list_jobs(bench: Bench) -> list[Row]:
    """The list of jobs after months of use; the jobs there are with `--quick`."""

    def listing() -> float:
        seconds = []
        with bench.stack.ray as client:
            for _ in range(REQUESTS):
                began = time.perf_counter()
                client.get("/api/jobs/").raise_for_status()
                seconds.append(time.perf_counter() - began)
        return statistics.median(seconds)

    with nullcontext() if bench.quick else many_jobs(bench.stack, LISTED):
        pairs = [(listing(), 0.5) for _ in range(bench.pairs)]
    among = "" if bench.quick else f" of {LISTED:,}"
    return [Row(f"list-jobs: the list{among} through the gateway, by 0.5 s", "s", pairs, 1.0)]
