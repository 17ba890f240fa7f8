"""Metrics per second: with the platform's writer until all have arrived, and one by one with MLflow."""

import itertools
import time

import mlflow
from harness import interleaved
from mlflow import MlflowClient
from scripts.common import arguments, print_result

import mlplatform
from mlplatform.tracking import server
from mlplatform.tracking.metrics import RunSink, stamped
from mlplatform.tracking.outbox import Outbox

STEPS = 1000
VALUES = ("loss", "accuracy")
STEPS_ONE_BY_ONE = STEPS // 10
"""A tenth, because it is slow; the result is the rate."""

_rounds = itertools.count()


def batched(run_id: str) -> float:
    name = f"batched-{next(_rounds)}"
    start = time.perf_counter()
    writer = Outbox(RunSink(run_id, server.uri()))
    for step in range(STEPS):
        writer.put(stamped({f"{name}/{value}": 1.0 / (step + 1) for value in VALUES}, step))
    writer.close()
    seconds = time.perf_counter() - start
    arrived = len(MlflowClient().get_metric_history(run_id, f"{name}/{VALUES[-1]}"))
    assert arrived == STEPS, f"{arrived} of {STEPS} steps have arrived"
    return STEPS * len(VALUES) / seconds


def one_by_one() -> float:
    name = f"single-{next(_rounds)}"
    start = time.perf_counter()
    for step in range(STEPS_ONE_BY_ONE):
        for value in VALUES:
            mlflow.log_metric(f"{name}/{value}", 1.0 / (step + 1), step=step)
    return STEPS_ONE_BY_ONE * len(VALUES) / (time.perf_counter() - start)


def main() -> None:
    args = arguments()
    with mlplatform.job_run(experiment="bench") as run:
        mlflow.log_metric("first", 1.0)  # opens the connection
        print_result(metrics=interleaved(lambda: batched(run.info.run_id), one_by_one, args.pairs))


if __name__ == "__main__":
    main()
