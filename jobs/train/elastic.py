"""A group of workers that shrinks and grows with what others leave to it, fed by Ray Data all the while.

    mlplatform submit train/elastic.py
    ray job submit --working-dir train -- python elastic.py --rows 600

The lesson: with `num_workers=(1, 2)` Ray Train starts with what it can have and looks again every few seconds. Each
change starts the training function anew at its last checkpoint, with the data sharded for the new size: an epoch that
was cut short is run again from its first row, so every epoch that counts has seen every row once. (Each size has to
divide the number of rows, because shards are made equally long.) What it can have is what the nodes have, less what
training that was started earlier has asked for; what other programs hold does not count. So two earlier trainings come
first here: as one ends, the other takes more, and the group shrinks; as that one ends too, it grows. A worker's
container that is stopped and started again on the stack does the same.
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
"""Of the group, one after the other."""

AT_EACH_SIZE = 2
"""Epochs, at least."""

FIRST, SECOND, WORKER = 0.5, 0.75, 0.25
"""Shares of a node: that the earlier trainings ask for, of which only one fits at a time, and a worker of the group."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=120, help="of the data set; each size divides it")
    parser.add_argument("--most", type=int, default=1000, help="epochs after which it waits for no change any more")
    args = parser.parse_args()
    if args.rows % math.lcm(*SIZES):
        parser.error(f"--rows is {args.rows}: 2 workers would leave a row out; give an even number.")
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
        time.sleep(0.5)  # As an epoch would take.
        metrics = {"epoch": len(sizes), "workers": size, "rows": len(ids), "ids": sum(ids)}
        sizes.append(size)
        if rank:
            ray.train.report(metrics)
            continue
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "sizes.json").write_text(json.dumps(sizes))
            ray.train.report(metrics, checkpoint=Checkpoint.from_directory(folder))


def stages(sizes: list[int]) -> list[tuple[int, int]]:
    """Each size that the group had, with the epochs that it had it for."""
    return [(size, len(list(epochs))) for size, epochs in groupby(sizes)]


def done(sizes: list[int]) -> bool:
    """Whether the group has had all the sizes, the last one for long enough."""
    return [size for size, _ in stages(sizes)] == SIZES and stages(sizes)[-1][1] >= AT_EACH_SIZE


def hold(config: dict) -> None:
    """A training that lasts until the group was seen at a size for some epochs."""
    while [report["workers"] for report in mlplatform.history("fit")].count(config["size"]) < AT_EACH_SIZE:
        time.sleep(1)


def start_earlier(share: float, size: int, node: str) -> threading.Thread:
    """Start such a training on one worker, which asks for a share of the node, and wait until it has asked."""
    trainer = DataParallelTrainer(
        hold,
        train_loop_config={"size": size},
        scaling_config=ScalingConfig(num_workers=1, resources_per_worker={node: share}),
        run_config=mlplatform.run_config(f"earlier-{share}"),
    )
    # A daemon, so that it does not outlive a group that has failed.
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
    # How long workers are waited for, by those that have to wait until others are gone; a minute unless told otherwise.
    os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = "600"
    with mlplatform.job_run(experiment="lessons", params=vars(args)) as run:
        ray.init()
        ray.data.DataContext.get_current().enable_progress_bars = False
        # Every node has one of this. Usual resources are CPUs and GPUs; this one is free whoever else works here.
        node = f"node:{ray.util.get_node_ip_address()}"
        # With `detailed`, what each rank has reported is kept, and can be added up.
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
