"""Compare a running stack with the tools that it is built on, and print a table: `make bench`.

Programs that run inside the stack are in `scripts/`. Jobs print their measurements; commands in the notebook are timed
in its container, so that the overhead of this program does not count.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
from harness import Row, table, write
from host import CHECKOUT, Stack
from persons import administer, log_in
from rich.console import Console
from rows_dev import dev
from rows_environments import environments
from rows_gateway import burst, gateway, list_jobs
from rows_operation import make_up, memory, recovery
from rows_submission import first_line, first_line_warm, infeasible, trivial_fit, warm_submit
from rows_training import batched_metrics, checkpoint_upload, open_run, training
from workbench import Bench, NotMeasuredError

from mlplatform.client.jobs import Jobs
from mlplatform.errors import HostError, PlatformError
from mlplatform.settings.environment import environment
from mlplatform.settings.job import Settings
from mlplatform_stack import docker, env

RESULTS = CHECKOUT / ".bench" / "results.json"
NEEDED = {"notebook", "gateway", "ray-head", "ray-worker-0", "ray-worker-1", "mlflow"}

_AT_ONCE_IF_QUICK = 3
"""Measurements at the same time if speed is not judged: most of the time, each waits for a job to start or end."""

MEASUREMENTS: dict[str, Callable[[Bench], list[Row]]] = {
    "warm-submit": warm_submit,
    "infeasible": infeasible,
    "first-line": first_line,
    "first-line-warm": first_line_warm,
    "trivial-fit": trivial_fit,
    "open-run": open_run,
    "list-jobs": list_jobs,
    "gateway": gateway,
    "batched-metrics": batched_metrics,
    "checkpoint-upload": checkpoint_upload,
    "burst": burst,
    "dev": dev,
    "memory": memory,
    "recovery": recovery,
    "environments": environments,
    "training": training,
    "make-up": make_up,
}


def started(bench: Bench, names: Sequence[str]) -> dict[str, Callable[[], list[Row]]]:
    """Functions that return the rows of each measurement; with `--quick`, several measurements already run."""
    measurements = {name: partial(MEASUREMENTS[name], bench) for name in names}
    if not bench.quick:
        return dict(measurements)
    pool = ThreadPoolExecutor(_AT_ONCE_IF_QUICK)
    return {name: pool.submit(measurement).result for name, measurement in measurements.items()}


def measure(bench: Bench, names: Sequence[str], console: Console) -> bool:
    """Measure, print and store rows; return False if one does not hold or could not be measured."""
    rows: list[Row] = []
    measured_all = True
    RESULTS.unlink(missing_ok=True)
    bench.prepare()
    try:
        for name, measurement in started(bench, names).items():
            try:
                new = measurement()
            except (NotMeasuredError, PlatformError, AssertionError, httpx.HTTPError) as error:
                print(f"{name} could not be measured: {error}", file=sys.stderr)
                measured_all = False
                continue
            if new:
                console.print(table(new))
            rows += new
            # After each measurement, so that an interrupted run keeps its results.
            write(rows, RESULTS)
    finally:
        bench.clean_up()
    console.print("", table(rows), f"\nWritten to {RESULTS}.", sep="\n", soft_wrap=True)
    return measured_all and (bench.quick or all(row.result.holds for row in rows))


@contextmanager
def submitter(root: Path, team: str) -> Iterator[Settings]:
    """Settings for submitting jobs with the shared token, or as a new person of a team, who is removed afterwards."""
    shared = env.client_settings(root)
    if not team:
        yield shared
        return
    with tempfile.TemporaryDirectory() as home:
        person = log_in(Stack(root), Path(home), "bench", team)
        try:
            yield shared.model_copy(update={"ray_auth_token_path": person.token_file})
        finally:
            administer(Stack(root), "people", "remove", person.name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=CHECKOUT, help="checkout whose stack is running")
    parser.add_argument("--quick", action="store_true", help="one short pair per measurement, without judging")
    parser.add_argument("--rows", nargs="+", default=list(MEASUREMENTS), choices=MEASUREMENTS, metavar="NAME")
    parser.add_argument("--pairs", type=int, default=5, help="pairs per row except the long ones; at least 2")
    parser.add_argument("--team", default="", help="submit jobs as a new person of this team")
    args = parser.parse_args()
    if args.pairs < 2:
        parser.error(f"--pairs is {args.pairs}: an interval needs 2 or more.")
    try:
        missing = NEEDED - docker.running(args.root)
        if missing:
            raise HostError(f"The stack does not run {', '.join(sorted(missing))}; start it with `make up`.")
        with submitter(args.root, args.team) as settings, Jobs(settings) as jobs:
            token = settings.token_file if args.team else None
            bench = Bench(args.root, jobs, args.quick, args.pairs, token)
            bench.variables = {**environment(), **settings.environment()}
            holds = measure(bench, args.rows, Console(width=170))
    except PlatformError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
