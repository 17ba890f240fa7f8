"""Feed training with Ray Data: read CSV and Parquet, filter, split, shard, and stream more than fits into memory.

    python train/ray_data.py --make /tmp/measurements && mlplatform data put /tmp/measurements measurements
    mlplatform submit train/ray_data.py
    mlplatform submit train/ray_data.py -- --rates 0.01 0.3        # a search over the same training

The lesson: a data set is uploaded once and read in place by name, and the run records which data it used. Each worker
iterates over its own shard; together they see every row once per epoch. All shards have the same length because workers
wait for each other, so a remainder of rows is dropped. Files of any kind are read only when needed, so a data set may
be larger than the object store. The split and the number of workers are arguments: `train_test_split(0.2,
shuffle=True)` shuffles, but each trial of a search would then validate on different rows. Ray Data's tasks need a CPU
in addition to those of the workers.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import ray
import ray.train
from ray import tune
from ray.data.expressions import col
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

import mlplatform
from mlplatform import tuning

ROWS = 240
METRIC = "val_loss"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--make", type=Path, help="write the data set files to this folder and exit")
    parser.add_argument("--data", default="measurements", help="name of the uploaded data set")
    parser.add_argument("--epochs", type=int, default=2, help="passes over the training rows")
    parser.add_argument("--workers", type=int, default=2, help="training processes")
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[0.3], help="learning rate; several values start a search"
    )
    parser.add_argument("--times", type=float, default=0, help="also stream this multiple of the object store's size")
    parser.add_argument("--use-gpu", action="store_true", help="give each worker one GPU")
    return parser.parse_args()


def make(folder: Path) -> None:
    """Write half of the rows as CSV and half as Parquet, several files each; one row in five is marked invalid."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    ids = np.arange(ROWS)
    x = np.linspace(-1, 1, ROWS)
    table = pa.table({"id": ids, "x": x, "y": 3 * x + 1, "valid": (ids % 5 != 4).astype(int)})
    kinds = [("csv", csv.write_csv), ("parquet", parquet.write_table)]
    for part in range(4):
        kind, write = kinds[part % 2]
        (folder / kind).mkdir(parents=True, exist_ok=True)
        write(table.slice(part * ROWS // 4, ROWS // 4), folder / kind / f"{part}.{kind}")


def datasets(address: str) -> dict[str, ray.data.Dataset]:
    """Split the valid rows: three quarters for training, one quarter for validation."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    # Otherwise rows arrive in the order in which tasks finish, and each trial validates on different rows.
    context.execution_options.preserve_order = True
    rows = ray.data.read_csv(f"{address}/csv").union(ray.data.read_parquet(f"{address}/parquet"))
    train, validation = rows.filter(expr=col("valid") == 1).train_test_split(0.25)
    return {"train": train, "validation": validation}


def large(times: float, block: int = 16 * 2**20) -> ray.data.Dataset:
    """Data set of `times` the capacity of all object stores, generated block by block while it is consumed."""
    blocks = int(times * ray.cluster_resources()["object_store_memory"] // block) // 2 * 2
    rows = ray.data.range(blocks, override_num_blocks=blocks)
    return rows.map_batches(lambda batch: {**batch, "payload": np.ones((len(batch["id"]), block), np.uint8)})


def train(config: dict) -> None:
    """Training function that runs on each worker: fit the line y = 3x + 1."""
    import torch
    from ray.train.torch import get_device, prepare_model

    model = prepare_model(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), config["rate"])
    shards = {name: ray.train.get_dataset_shard(name) for name in ("train", "validation")}
    for epoch in range(config["epochs"]):
        seen = {name: [] for name in shards}
        for name, shard in shards.items():
            losses = []
            # Shuffle within a buffer only, so that not all rows must be in memory at once.
            options = {"local_shuffle_buffer_size": 64} if name == "train" else {}
            for batch in shard.iter_torch_batches(batch_size=16, dtypes=torch.float32, device=get_device(), **options):
                seen[name] += batch["id"].int().tolist()
                loss = torch.nn.functional.mse_loss(model(batch["x"][:, None]), batch["y"][:, None])
                losses.append(loss.item())
                if name == "train":
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
        counts = {f"{name}_rows": len(ids) for name, ids in seen.items()}
        sums = {f"{name}_ids": sum(ids) for name, ids in seen.items()}
        ray.train.report({"epoch": epoch, METRIC: sum(losses) / len(losses), **counts, **sums})

    if config["streams"]:
        rows = ids = size = 0
        for batch in ray.train.get_dataset_shard("large").iter_batches(batch_size=None):
            rows, ids = rows + len(batch["id"]), ids + int(batch["id"].sum())
            size += batch["payload"].nbytes
        ray.train.report({"epoch": config["epochs"], "large_rows": rows, "large_ids": ids, "large_bytes": size})


def fit(config: dict, run_config: RunConfig) -> None:
    sets = datasets(config["address"])
    if config["streams"]:
        sets["large"] = large(config["streams"])
    TorchTrainer(
        train,
        train_loop_config=config,
        datasets=sets,
        scaling_config=ScalingConfig(num_workers=config["workers"], use_gpu=config["use_gpu"]),
        run_config=run_config,
    ).fit()


def trial(config: dict) -> None:
    """Trial function: each trial reads the data set itself."""
    fit(config, tuning.trial_config())


def main() -> None:
    args = arguments()
    if args.make:
        make(args.make)
        return
    with mlplatform.job_run(experiment="lessons", params=vars(args)) as run:
        config = {"address": mlplatform.dataset(args.data).uri, "epochs": args.epochs, "streams": args.times}
        config |= {"workers": args.workers, "use_gpu": args.use_gpu}
        if len(args.rates) > 1:
            tuner = tuning.tuner(
                tune.with_resources(trial, {"cpu": 0.01}),
                param_space={**config, "rate": tune.grid_search(args.rates)},
                tune_config=tune.TuneConfig(metric=METRIC, mode="min", max_concurrent_trials=1),
            )
            result, _ = tuning.best(tuner.fit())
            print(f"Best rate: {json.dumps(result.config['rate'])}")
        else:
            # `detailed` keeps the reports of every rank, so that they can be summed.
            fit({**config, "rate": args.rates[0]}, mlplatform.run_config("fit", detailed=True))
            for report in mlplatform.history("fit"):
                sums = {
                    key: sum(rank[key] for rank in report["ranks"])
                    for key in report["ranks"][0]
                    if key.endswith(("_rows", "_ids", "_bytes"))
                }
                print(f"Epoch {report['epoch']}: {json.dumps(sums)}")
            print(f"Object store: {json.dumps(ray.cluster_resources()['object_store_memory'])}")
        if run:
            print(f"Run: {mlplatform.run_url(run)}")


if __name__ == "__main__":
    main()
