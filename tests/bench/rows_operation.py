"""Rows about operating the stack: crashes, its start, and the memory of a node."""

from __future__ import annotations

import os
import sys
import time
from functools import partial

from failure_training import whole_again, worker_without_driver
from harness import Row, interleaved
from host import run
from node_memory import MEMORY_WORKERS, QUICK_WORKERS, node_memory
from workbench import WORKERS, Bench, NotMeasuredError


def recovery(bench: Bench) -> list[Row]:
    """Time that a crash costs a training, up to the first step beyond the last reported one."""
    if bench.quick:
        print("Skipped recovery: the stack tests do the same.")
        return []
    node = [bench.recovery(lambda job_id: [bench.driver_node(job_id)]) for _ in range(bench.pairs)]
    worker = [bench.recovery(lambda job_id: [worker_without_driver(bench.stack, job_id)]) for _ in range(bench.pairs)]
    head = [bench.recovery(lambda _: ["ray-head"]) for _ in range(bench.pairs)]
    ray = [bench.recovery(lambda _: ["ray-head", *WORKERS]) for _ in range(bench.pairs)]
    return [
        Row("recovery-node: the driver's node crashed, by 25 s", "s", [(took, 25.0) for took in node], 1.0),
        Row("recovery-worker: a train worker's node crashed, by 25 s", "s", [(took, 25.0) for took in worker], 1.0),
        Row("recovery-head: the head crashed, by 5 s", "s", [(took, 5.0) for took in head], 1.0),
        Row("recovery-ray: all of Ray crashed, by 90 s", "s", [(took, 90.0) for took in ray], 1.0),
    ]


def memory(bench: Bench) -> list[Row]:
    """Memory of a node's processes while a group of train workers waits, warm and cold."""
    bench.wait_for_templates()
    count = QUICK_WORKERS if bench.quick else MEMORY_WORKERS
    warm, cold = partial(node_memory, bench, count, is_cold=False), partial(node_memory, bench, count, is_cold=True)
    pairs = interleaved(warm, cold, bench.long_pairs)
    return [Row(f"memory: PSS of a node with {count} warm train workers by cold ones", "MB", pairs, 0.6)]


def make_up(bench: Bench) -> list[Row]:
    """Start of the stack from built images until it is healthy, with templates and without."""
    if bench.quick:
        print("Skipped make-up: it restarts the stack.")
        return []
    try:
        pairs = interleaved(partial(start, bench, "1"), partial(start, bench, "0"), bench.pairs)
    finally:
        # With the stack's own settings again; its containers have lost the benchmark's files.
        start(bench)
        whole_again(bench.stack)
        bench.prepare()
    return [Row("make-up: the start of the stack with templates by the start without", "s", pairs, 1.05)]


def start(bench: Bench, warm_start: str | None = None) -> float:
    """Stop the stack and return the seconds of its start, as `make up` does it after the build."""
    bench.stack.compose("down", "--remove-orphans")
    setting = {} if warm_start is None else {"WARM_START": warm_start}
    began = time.monotonic()
    command = (sys.executable, "-m", "mlplatform", "stack", "up")
    done = run(*command, cwd=bench.stack.root, env={**os.environ, **setting}, check=False)
    seconds = time.monotonic() - began
    if done.returncode:
        raise NotMeasuredError(f"The stack did not start:\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
    return seconds
