"""Report from all ranks, choose how reports are aggregated, and follow them in the driver during training.

    mlplatform submit train/reports.py
    ray job submit --working-dir train -- python reports.py --aggregate mean

The lesson: every rank reports, and `run_config(aggregate=...)` selects what is logged to MLflow: rank 0's value, the
mean or the maximum. Some metrics, such as the F1 score, are not the mean of the ranks' values. TorchMetrics counts on
every rank and combines the counts, so each rank reports the score over all data. A callback with a queue sends each
rank's reports to the driver at once; outside the job, use `mlplatform.Jobs().reports(job_id)`.
"""

import argparse
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import ray.train
import torch
from ray.train import ScalingConfig, UserCallback
from ray.train.torch import TorchTrainer
from ray.util.queue import Queue
from sklearn.datasets import load_digits

import mlplatform


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--aggregate",
        nargs="+",
        choices=["rank0", "mean", "max"],
        default=["rank0", "mean"],
        help="one training run per value",
    )
    parser.add_argument("--epochs", type=int, default=3, help="reports per training run")
    parser.add_argument("--workers", type=int, default=2, help="training processes")
    return parser.parse_args()


def guesses(epoch: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels of 1,797 digits, and guesses; the share of random guesses halves with each epoch."""
    labels = load_digits().target
    random = np.random.default_rng(epoch)
    wrong = random.random(len(labels)) < 0.5 ** (epoch + 1)
    return labels, np.where(wrong, random.integers(10, size=len(labels)), labels)


def score(config: dict) -> None:
    """Training function that runs on each worker: rank r scores r + 1 times as many guesses as rank 0."""
    # Imports much of torch, so only the workers import it.
    from torchmetrics import MetricCollection
    from torchmetrics.classification import (
        MulticlassF1Score,
        MulticlassFBetaScore,
        MulticlassPrecision,
        MulticlassRecall,
    )

    rank, ranks = ray.train.get_context().get_world_rank(), ray.train.get_context().get_world_size()
    of_all = MetricCollection(
        {
            "f1": MulticlassF1Score(num_classes=10),
            "f_half": MulticlassFBetaScore(beta=0.5, num_classes=10),
            "precision": MulticlassPrecision(num_classes=10),
            "recall": MulticlassRecall(num_classes=10),
        },
        # Each metric synchronizes its own state over the ranks.
        compute_groups=False,
    )
    f1_of_rank = MulticlassF1Score(num_classes=10, sync_on_compute=False)
    for epoch in range(config["epochs"]):
        labels, guessed = guesses(epoch)
        unit = len(labels) // sum(range(1, ranks + 1))
        begin = unit * rank * (rank + 1) // 2
        part = slice(begin, begin + unit * (rank + 1) if rank < ranks - 1 else None)
        for metric in (of_all, f1_of_rank):
            metric.reset()
            metric.update(torch.tensor(guessed[part]), torch.tensor(labels[part]))
        # A collective operation: every rank must call it.
        scores = {name: score.item() for name, score in of_all.compute().items()}
        images = len(labels[part])
        ray.train.report({"epoch": epoch, **scores, "f1_of_rank": f1_of_rank.compute().item(), "images": images})


class Forward(UserCallback):
    """Callback in Ray Train's controller, which receives each report as a list of the ranks' metrics."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue

    def after_report(self, run_context, metrics, checkpoint) -> None:
        self.queue.put(metrics)


def reports(trainer: TorchTrainer, queue: Queue) -> Iterator[tuple[list[dict], bool]]:
    """Train in a thread; yield each report as it arrives, and True if the training is still running then."""
    with ThreadPoolExecutor(1) as thread:
        training = thread.submit(trainer.fit)
        training.add_done_callback(lambda _: queue.put(None))
        while (report := queue.get()) is not None:
            yield report, training.running()
        training.result()


def main() -> None:
    args = arguments()
    with mlplatform.job_run(experiment="train", params=vars(args)) as run:
        for aggregate in args.aggregate:
            queue = Queue(actor_options={"num_cpus": 0})
            trainer = TorchTrainer(
                score,
                train_loop_config={"epochs": args.epochs},
                scaling_config=ScalingConfig(num_workers=args.workers),
                # `detailed` adds each rank's values, host and process, and the times since the last restore.
                run_config=mlplatform.run_config(
                    aggregate, aggregate=aggregate, detailed=aggregate != "rank0", callbacks=[Forward(queue)]
                ),
            )
            live = []
            for ranks, running in reports(trainer, queue):
                print(f"New report from each rank: {json.dumps(ranks)}", flush=True)
                live.append({"ranks": ranks, "running": running})
            print(f"Live with {aggregate}: {json.dumps(live)}")
            print(f"Kept with {aggregate}: {json.dumps(mlplatform.history(aggregate))}")
        if run:
            print(f"Run: {mlplatform.run_url(run)}")


if __name__ == "__main__":
    main()
