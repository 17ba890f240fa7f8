"""Train on an elastic group of workers that shrinks and grows with the available resources, fed by Ray Data.

    mlplatform submit train/elastic.py
    ray job submit --working-dir train -- python elastic.py --rows 600

The lesson: with `num_workers=(1, 2)`, Ray Train starts with the workers that fit and checks again every few seconds.
Each resize restarts the training function from its last checkpoint, with the data resharded. An interrupted epoch is
repeated from its first row, so every completed epoch has seen each row once. (Each group size must divide the number of
rows, because all shards have the same length.) Ray Train counts the nodes' resources minus the requests of training
runs that started earlier; resources held by other programs do not count. This lesson therefore starts two other
training runs first: when one ends, the other takes more and the group shrinks; when that one ends too, the group grows.
Stopping and starting a worker container on the stack has the same effect.
"""

import argparse
import json
import math
import os
import tempfile
import threading
import time
from itertools import groupby
from pathlib import Path

import ray
import ray.train
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

import mlplatform

SIZES = [2, 1, 2]
"""Sizes of the group, in order."""

AT_EACH_SIZE = 2
"""Minimum number of epochs at each size."""

FIRST, SECOND, WORKER = 0.5, 0.75, 0.25
"""Fractions of a node: for the two earlier training runs, only one of which fits at a time, and for a group worker."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=120, help="rows of the data set; each group size must divide it")
    parser.add_argument("--most", type=int, default=1000, help="maximum number of epochs to wait for a resize")
    args = parser.parse_args()
    if args.rows % math.lcm(*SIZES):
        parser.error(f"--rows is {args.rows}, which 2 workers cannot split equally; use an even number.")
    return args


def train(config: dict) -> None:
    context = ray.train.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    shard = ray.train.get_dataset_shard("train")
    sizes = []
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            sizes = json.loads(Path(folder, "sizes.json").read_text())
    while not done(sizes) and len(sizes) < config["most"]:
        ids = [int(row["id"]) for row in shard.iter_rows()]
        time.sleep(0.5)  # Stands in for the work of an epoch.
        metrics = {"epoch": len(sizes), "workers": size, "rows": len(ids), "ids": sum(ids)}
        sizes.append(size)
        if rank:
            ray.train.report(metrics)
            continue
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "sizes.json").write_text(json.dumps(sizes))
            ray.train.report(metrics, checkpoint=Checkpoint.from_directory(folder))


def stages(sizes: list[int]) -> list[tuple[int, int]]:
    """Consecutive sizes of the group, each with its number of epochs."""
    return [(size, len(list(epochs))) for size, epochs in groupby(sizes)]


def done(sizes: list[int]) -> bool:
    """Return True once the group has gone through all sizes, with enough epochs at the last."""
    return [size for size, _ in stages(sizes)] == SIZES and stages(sizes)[-1][1] >= AT_EACH_SIZE


def hold(config: dict) -> None:
    """Keep training until the group has reported enough epochs at a given size."""
    while [report["workers"] for report in mlplatform.history("fit")].count(config["size"]) < AT_EACH_SIZE:
        time.sleep(1)


def start_earlier(share: float, size: int, node: str) -> threading.Thread:
    """Start `hold` on one worker that requests a fraction of the node; return once the request is placed."""
    trainer = DataParallelTrainer(
        hold,
        train_loop_config={"size": size},
        scaling_config=ScalingConfig(num_workers=1, resources_per_worker={node: share}),
        run_config=mlplatform.run_config(f"earlier-{share}"),
    )
    # A daemon thread, so that it does not outlive a failed group.
    thread = threading.Thread(target=trainer.fit, daemon=True)
    thread.start()
    while not any({node: share} in group["bundles"].values() for group in ray.util.placement_group_table().values()):
        time.sleep(0.5)
    return thread


def fit(rows: int, most: int, node: str, run_config: RunConfig) -> None:
    DataParallelTrainer(
        train,
        train_loop_config={"most": most},
        datasets={"train": ray.data.range(rows)},
        scaling_config=ScalingConfig(
            num_workers=(1, 2), resources_per_worker={node: WORKER}, elastic_resize_monitor_interval_s=2
        ),
        run_config=run_config,
    ).fit()


def main() -> None:
    args = arguments()
    # Timeout for starting workers (default: a minute); here they must wait for the earlier runs to end.
    os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = "600"
    with mlplatform.job_run(experiment="lessons", params=vars(args)) as run:
        ray.init()
        ray.data.DataContext.get_current().enable_progress_bars = False
        # Every node has 1.0 of this resource. Unlike CPUs and GPUs, no other job uses it.
        node = f"node:{ray.util.get_node_ip_address()}"
        # `detailed` keeps the reports of every rank, so that they can be summed.
        run_config = mlplatform.run_config("fit", detailed=True)
        earlier = [start_earlier(FIRST, SIZES[0], node), start_earlier(SECOND, SIZES[1], node)]
        fit(args.rows, args.most, node, run_config)
        for thread in earlier:
            thread.join()

        reports = mlplatform.history("fit")
        print(f"Sizes: {json.dumps(stages([report['workers'] for report in reports]))}")
        seen = {tuple(sum(rank[key] for rank in report["ranks"]) for key in ("rows", "ids")) for report in reports}
        print(f"Rows and sum of ids of an epoch: {json.dumps(sorted(seen))}")
        if run:
            print(f"Run: {mlplatform.run_url(run)}")


if __name__ == "__main__":
    main()
