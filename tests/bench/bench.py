"""Compare a running stack with the tools that it is built on, and print a table: `make bench`.

Programs that run inside the stack are in `scripts/`. Jobs print their measurements; commands in the notebook are timed
in its container, so that the overhead of this program does not count.
"""

from __future__ import annotations

import argparse
import json
import secrets
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import failure_training as training_job
from harness import RESULT, Row, interleaved, table, write
from host import CHECKOUT, Stack
from rich.console import Console

from mlplatform.client.jobs import Jobs
from mlplatform.errors import HostError, PlatformError
from mlplatform.stack import compose, env

BENCH = Path(__file__).parent
RESULTS = CHECKOUT / ".bench" / "results.json"
NEEDED = {"notebook", "gateway", "ray-head", "ray-worker-0", "ray-worker-1", "mlflow", "minio"}

FIRST_LINE = "The first line of user code."
# The packages of the tutorial's requirements.txt.
TUTORIAL_PACKAGES = ["torch", "torchvision", "lightning", "boto3", "s3fs"]
FOLDER = "/tmp/bench"

_PAIRS = 5
_TUTORIAL_PAIRS = 3
"""Each takes two and a half minutes; the interval of two pairs would be 13 deviations wide."""


class NotMeasuredError(Exception):
    """A job or a command of the benchmark failed; the message contains the end of its output."""


class Bench:
    """The running stack, and helpers shared by the measurements."""

    def __init__(self, root: Path, jobs: Jobs, quick: bool, pairs: int) -> None:
        self.stack = Stack(root)
        self.quick = quick
        self.pairs = 1 if quick else pairs
        self._jobs = jobs

    def job(self, script: str, *arguments: str) -> dict[str, list[tuple[float, float]]]:
        """Run a script as a job and return the pairs that it measured, by name."""
        command = ["python", "-m", f"scripts.{script}", f"--pairs={self.pairs}", *arguments]
        job_id = self._jobs.submit([*command, *(["--quick"] if self.quick else [])], BENCH, name=f"bench-{script}")
        lines = list(self._jobs.follow(job_id))
        found = [line.partition(RESULT)[2] for line in lines if RESULT in line]
        if self._jobs.get(job_id).status != "SUCCEEDED" or not found:
            raise NotMeasuredError(f"Job {job_id} measured nothing:\n" + "\n".join(lines[-30:]))
        return json.loads(found[-1])

    def seconds(self, folder: str, *command: str, until: str = "") -> float:
        """Time a command in the notebook, to its end or to the first line that contains `until`.

        Waits for the submitted job to end, so that it does not slow down the next measurement.
        """
        stopwatch = ["python", f"{FOLDER}/stopwatch.py", *(["--until", until] if until else [])]
        printed = subprocess.run(
            ["docker", "exec", "--workdir", folder, self.stack.container("notebook"), *stopwatch, "--", *command],
            capture_output=True,
            text=True,
            check=False,
        )
        if printed.returncode:
            raise NotMeasuredError(f"`{' '.join(command)}` failed:\n{printed.stdout[-3000:]}{printed.stderr[-1000:]}")
        measured = json.loads(printed.stdout.splitlines()[-1])
        self._jobs.wait(measured["job"], timeout_s=300)
        return float(measured["seconds"])

    def driver_node(self, job_id: str) -> str:
        """The service whose node runs a job's driver."""
        return str(self._jobs.attempts(job_id)[-1].node)

    def recovery(self, victims: Callable[[str], Sequence[str]]) -> float:
        """Seconds from the crash of services during a training to its next new step."""
        job_id = training_job.submit(self._jobs, 300, 1)
        training_job.after_a_checkpoint(self._jobs, job_id, more=4)
        crashed = victims(job_id)
        seconds = training_job.recovery(
            self._jobs,
            job_id,
            lambda: [training_job.crash(self.stack, one) for one in crashed],
            # Training continues if only the head is down.
            workers_restart=set(crashed) != {"ray-head"},
        )
        self._jobs.stop(job_id)
        self._jobs.wait(job_id, timeout_s=120)
        training_job.whole_again(self.stack)
        return seconds

    def new_job(self, **files: str) -> str:
        """Create a folder in the notebook with a job new to the stack; `files` are named without their suffix."""
        folder = f"{FOLDER}/{secrets.token_hex(4)}"
        self.stack.write("notebook", f"{folder}/hello.py", f"print({FIRST_LINE!r}, flush=True)  # {folder}\n")
        for name, text in files.items():
            self.stack.write("notebook", f"{folder}/{name}{'.json' if name == 'runtime' else '.txt'}", text)
        return folder

    def prepare(self) -> None:
        self.stack.write("notebook", f"{FOLDER}/stopwatch.py", (BENCH / "scripts" / "stopwatch.py").read_text())

    def clean_up(self) -> None:
        self.stack.execute("notebook", "rm", "-rf", FOLDER, check=False)


# --- Measurements ---

# Unset the platform's hook, which is not part of plain Ray.
PLAIN = ("env", "-u", "RAY_JOB_SUBMIT_HOOK", "ray", "job", "submit")


def training(bench: Bench) -> list[Row]:
    measured = bench.job("training")
    return [
        Row("tracked-training: the same training with job_run and run_config", "s", measured["training"], 1.02),
        Row("async-stall: report() of an asynchronous upload by a synchronous one", "s", measured["stall"], 0.05),
    ]


def batched_metrics(bench: Bench) -> list[Row]:
    name = "batched-metrics: MetricWriter by mlflow.log_metric"
    return [Row(name, "metrics/s", bench.job("metrics")["metrics"], 20, "higher")]


def checkpoint_upload(bench: Bench) -> list[Row]:
    name = "checkpoint-upload: storage.upload by boto3's upload_file"
    return [Row(name, "MB/s", bench.job("upload")["upload"], 0.8, "higher")]


def trivial_fit(bench: Bench) -> list[Row]:
    name = "trivial-fit: a program that trains nothing on 2 workers, by torchrun"
    return [Row(name, "s", bench.job("startup")["startup"], 2.0)]


def submit(bench: Bench) -> float:
    return bench.seconds(bench.new_job(), "mlplatform", "submit", "hello.py", until=FIRST_LINE)


def plain_submit(bench: Bench) -> float:
    return bench.seconds(bench.new_job(), *PLAIN, "--working-dir", ".", "--", "python", "hello.py", until=FIRST_LINE)


def tutorial_submit(bench: Bench, index_url: str) -> float:
    """Submit as the tutorial does, with packages in the job's runtime environment; no node has a copy of it."""
    # A marker that is true everywhere makes the list new without changing the installed packages.
    packages = [*TUTORIAL_PACKAGES, f'iniconfig==2.1.0; platform_machine != "bench-{secrets.token_hex(4)}"']
    variables = {"FOOD11_DATA_DIR": "/mnt/Food-11", **({"PIP_INDEX_URL": index_url} if index_url else {})}
    runtime = json.dumps({"pip": "requirements.txt", "env_vars": variables})
    folder = bench.new_job(requirements="\n".join(packages) + "\n", runtime=runtime)
    options = ("--runtime-env", "runtime.json", "--working-dir", ".")
    return bench.seconds(folder, *PLAIN, *options, "--", "python", "hello.py", until=FIRST_LINE)


def first_line(bench: Bench) -> list[Row]:
    if not bench.quick:
        # Warm-up: the first run of each reads its programs from disk.
        submit(bench)
        plain_submit(bench)
    pairs = interleaved(partial(submit, bench), partial(plain_submit, bench), bench.pairs)
    return [Row("first-line: mlplatform submit of a new job by plain ray job submit", "s", pairs, 1.0)]


def first_line_tutorial(bench: Bench) -> list[Row]:
    if bench.quick:
        print("Skipped first-line-tutorial: it takes minutes.")
        return []
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True, check=False
    )
    baseline = partial(tutorial_submit, bench, asked.stdout.strip())
    pairs = interleaved(partial(submit, bench), baseline, _TUTORIAL_PAIRS)
    name = "first-line-tutorial: speedup over the tutorial's runtime_env"
    return [Row(name, "s", pairs, 20, "higher", speedup=True)]


def warm_submit(bench: Bench) -> list[Row]:
    folder = bench.new_job()
    ours = partial(bench.seconds, folder, "mlplatform", "submit", "--no-wait", "hello.py")
    options = ("--no-wait", "--working-dir", ".", "--", "python", "hello.py")
    if not bench.quick:
        ours()
    pairs = interleaved(ours, partial(bench.seconds, folder, *PLAIN, *options), bench.pairs)
    return [
        Row("warm-submit: mlplatform submit --no-wait, by 1 s", "s", [(mine, 1.0) for mine, _ in pairs], 1.0),
        Row("warm-submit-ray: the same by ray job submit --no-wait", "s", pairs, 1.0),
    ]


def gateway(bench: Bench) -> list[Row]:
    """Requests through the gateway compared with requests to the head."""
    for name, file in (("harness", "harness.py"), ("gateway", "scripts/gateway.py")):
        bench.stack.write("notebook", f"{FOLDER}/{name}.py", (BENCH / file).read_text())
    printed = bench.stack.execute("notebook", "python", f"{FOLDER}/gateway.py", f"--pairs={bench.pairs}").stdout
    measured = json.loads(printed.rpartition(RESULT)[2])
    allowed = [(ours, max(1.1 * theirs, theirs + 0.05)) for ours, theirs in measured["submit"]]
    return [
        Row("gateway-submit: submit_job through the gateway by the bare head's time plus 50 ms", "s", allowed, 1.0),
        Row("log-follow: lateness of a line through the gateway by the bare head's", "s", measured["follow"], 1.5),
    ]


def recovery(bench: Bench) -> list[Row]:
    """Time that a crash costs a training, up to the first step beyond the last reported one."""
    if bench.quick:
        print("Skipped recovery: the stack tests do the same.")
        return []
    workers = ("ray-worker-0", "ray-worker-1")
    node = [bench.recovery(lambda job_id: [bench.driver_node(job_id)]) for _ in range(bench.pairs)]
    head = [bench.recovery(lambda _: ["ray-head"]) for _ in range(bench.pairs)]
    ray = [bench.recovery(lambda _: ["ray-head", *workers]) for _ in range(bench.pairs)]
    return [
        Row("recovery-node: the driver's node crashed, by 45 s", "s", [(took, 45.0) for took in node], 1.0),
        Row("recovery-head: the head crashed, by 5 s", "s", [(took, 5.0) for took in head], 1.0),
        Row("recovery-ray: all of Ray crashed, by 90 s", "s", [(took, 90.0) for took in ray], 1.0),
    ]


MEASUREMENTS: dict[str, Callable[[Bench], list[Row]]] = {
    "warm-submit": warm_submit,
    "first-line": first_line,
    "batched-metrics": batched_metrics,
    "checkpoint-upload": checkpoint_upload,
    "trivial-fit": trivial_fit,
    "training": training,
    "gateway": gateway,
    "recovery": recovery,
    "first-line-tutorial": first_line_tutorial,
}


def measure(bench: Bench, names: Sequence[str], console: Console) -> bool:
    """Measure, print and store rows; return False if one does not hold or could not be measured."""
    rows: list[Row] = []
    measured_all = True
    RESULTS.unlink(missing_ok=True)
    bench.prepare()
    try:
        for name in names:
            try:
                new = MEASUREMENTS[name](bench)
            except (NotMeasuredError, PlatformError, AssertionError) as error:
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=CHECKOUT, help="checkout whose stack is running")
    parser.add_argument("--quick", action="store_true", help="one short pair per measurement, without judging")
    parser.add_argument("--rows", nargs="+", default=list(MEASUREMENTS), choices=MEASUREMENTS, metavar="NAME")
    parser.add_argument(
        "--pairs", type=int, default=_PAIRS, help="pairs per row except first-line-tutorial; at least 2"
    )
    args = parser.parse_args()
    if args.pairs < 2:
        parser.error(f"--pairs is {args.pairs}: an interval needs 2 or more.")
    try:
        missing = NEEDED - compose.running(args.root)
        if missing:
            raise HostError(f"The stack does not run {', '.join(sorted(missing))}; start it with `make up`.")
        with Jobs(env.client_settings(args.root)) as jobs:
            holds = measure(Bench(args.root, jobs, args.quick, args.pairs), args.rows, Console(width=170))
    except PlatformError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
