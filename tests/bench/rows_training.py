"""Rows about running trainings: steps, metrics, checkpoints, and the run that they are recorded in."""

from __future__ import annotations

from contextlib import nullcontext

from full_tables import many_runs
from harness import Row
from workbench import Bench

RUNS, EXPERIMENTS = 50_000, 500
"""In MLflow while the time to open another run is measured."""


def training(bench: Bench) -> list[Row]:
    measured = bench.job("training")
    step = "tracked-training: a step of the same training with job_run and run_config"
    return [
        Row(step, "s", measured["training"], 1.02),
        Row("tracked-training-cpu: CPU time of the same step", "s", measured["training_cpu"], 1.02),
        Row("async-stall: report() of an asynchronous upload by a synchronous one", "s", measured["stall"], 0.05),
    ]


def batched_metrics(bench: Bench) -> list[Row]:
    name = "batched-metrics: the outbox by mlflow.log_metric"
    return [Row(name, "metrics/s", bench.job("metrics")["metrics"], 20, "higher")]


def checkpoint_upload(bench: Bench) -> list[Row]:
    name = "checkpoint-upload: storage.upload by boto3's upload_file"
    return [Row(name, "MB/s", bench.job("upload")["upload"], 0.8, "higher")]


def open_run(bench: Bench) -> list[Row]:
    """Each job opens its run once, so one job per pair."""
    with nullcontext() if bench.quick else many_runs(bench.stack, RUNS, EXPERIMENTS):
        if not bench.quick:
            # Warm-up: MLflow checks the password of an account once per ten minutes, which takes 0.1 s.
            bench.job("open_run")
        pairs = [pair for _ in range(bench.pairs) for pair in bench.job("open_run")["open_run"]]
    among = "" if bench.quick else f" among {RUNS:,} in {EXPERIMENTS} experiments"
    return [Row(f"open-run: entering mlplatform.job_run{among}, by 0.3 s", "s", pairs, 1.0)]
