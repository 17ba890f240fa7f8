"""Rows about submitting jobs: from the command to the first line, or to the end of a small training."""

from __future__ import annotations

import re
from functools import partial

from harness import Row, interleaved
from workbench import BENCH, COLD, FIRST_LINE, Bench, NotMeasuredError

# Unset the platform's hook, which is not part of plain Ray.
PLAIN = ("env", "-u", "RAY_JOB_SUBMIT_HOOK", "ray", "job", "submit")

TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")

_TIME = re.compile(r"^\d+\.\d+$", re.MULTILINE)


def submit(bench: Bench) -> float:
    return bench.seconds(bench.new_job(), "mlplatform", "submit", "hello.py", until=FIRST_LINE)


def plain_submit(bench: Bench) -> float:
    return bench.seconds(bench.new_job(), *PLAIN, "--working-dir", ".", "--", "python", "hello.py", until=FIRST_LINE)


def first_line(bench: Bench) -> list[Row]:
    if not bench.quick:
        # Warm-up: the first run of each reads its programs from disk.
        submit(bench)
        plain_submit(bench)
    pairs = interleaved(partial(submit, bench), partial(plain_submit, bench), bench.pairs)
    return [Row("first-line: mlplatform submit of a new job by plain ray job submit", "s", pairs, 1.0)]


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


def infeasible(bench: Bench) -> list[Row]:
    """A job with more GPUs than any node has is rejected before anything is uploaded."""
    rejected = partial(bench.seconds_until_error, bench.new_job(), "mlplatform", "submit", "--gpus=99", "hello.py")
    if not bench.quick:
        rejected()
    pairs = [(rejected(), 2.0) for _ in range(bench.pairs)]
    return [Row("infeasible: the error of mlplatform submit for a job that fits no node, by 2 s", "s", pairs, 1.0)]


def imported(bench: Bench, env: dict[str, str]) -> float:
    """Seconds from the start of a job's attempt to the first line after its imports."""
    return since_start(bench, bench.submit(["python", "-m", "scripts.first_line"], "first-line", env))


def since_start(bench: Bench, job_id: str) -> float:
    """Seconds from the start of a job's attempt to the time that it prints."""
    bench.jobs.wait(job_id, timeout_s=300)
    log = bench.jobs.logs(job_id)
    found = _TIME.search(log)
    if not found:
        raise NotMeasuredError(f"Job {job_id} printed no time:\n{log[-3000:]}")
    return float(found[0]) - bench.jobs.attempts(job_id)[-1].created.timestamp()


def first_line_warm(bench: Bench) -> list[Row]:
    """A script that imports torch, Lightning, Ray and MLflow, warm and cold."""
    bench.wait_for_templates()
    if not bench.quick:
        # Warm-up: reads the packages from disk.
        imported(bench, {})
        imported(bench, COLD)
    pairs = interleaved(partial(imported, bench, {}), partial(imported, bench, COLD), bench.pairs)
    warm = [(mine, 3.0) for mine, _ in pairs]
    return [
        Row("first-line-warm: from the start of an attempt to the line after its imports, by 3 s", "s", warm, 1.0),
        Row("first-line-cold: the same by a cold start", "s", pairs, 0.5),
    ]


def trivial_fit(bench: Bench) -> list[Row]:
    """The whole job compared with a cold torchrun on a node."""
    bench.wait_for_templates()
    program = (BENCH / "scripts" / "trivial_fit.py").read_text()

    def ours() -> float:
        folder = bench.new_job(trivial_fit=program)
        return bench.seconds(folder, "mlplatform", "submit", "trivial_fit.py")

    def torchrun() -> float:
        return bench.seconds_on_worker("python", *TORCHRUN, "trivial_torchrun.py")

    if not bench.quick:
        # Warm-up: reads torch from disk.
        ours()
        torchrun()
    pairs = interleaved(ours, torchrun, bench.pairs)
    return [Row("trivial-fit: mlplatform submit of a sum over 2 workers, to its end, by torchrun", "s", pairs, 1.5)]
