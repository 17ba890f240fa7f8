"""Feed training by Ray Data: CSV and Parquet together, filtered, split, sharded, and more than memory holds streamed.

    python train/ray_data.py --make /tmp/measurements && mlplatform data put /tmp/measurements measurements
    mlplatform submit train/ray_data.py
    mlplatform submit train/ray_data.py -- --rates 0.01 0.3        # a search over the same training

The lesson: data sets are put once and read in place by name, so the run says what it was trained on. Each worker
iterates over its own shard; together they see every row once an epoch. Shards have the same length, because workers
wait for each other: what the number of workers does not divide is left out. Nothing is read before it is needed, so a
data set may be larger than the object store. Ray Data's tasks need a CPU beside those of the workers.
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
    parser.add_argument("--make", type=Path, help="only write the files of the data set into this folder")
    parser.add_argument("--data", default="measurements", help="name of the data set, as it was put")
    parser.add_argument("--epochs", type=int, default=2, help="passes over the training rows")
    parser.add_argument("--workers", type=int, default=2, help="processes that train together")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.3], help="learning rates; several are searched")
    parser.add_argument("--times", type=float, default=0, help="also stream so many times the object store's size")
    parser.add_argument("--use-gpu", action="store_true", help="one GPU a worker")
    return parser.parse_args()


def make(folder: Path) -> None:
    """Half of the rows as CSV, half as Parquet, several files each; one row in five has no valid measurement."""
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
    """Three quarters of the valid rows to train with, one to validate."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    # Else rows come as tasks end, and no two trials are validated on the same ones.
    context.execution_options.preserve_order = True
    rows = ray.data.read_csv(f"{address}/csv").union(ray.data.read_parquet(f"{address}/parquet"))
    train, validation = rows.filter(expr=col("valid") == 1).train_test_split(0.25)
    return {"train": train, "validation": validation}


def large(times: float, block: int = 16 * 2**20) -> ray.data.Dataset:
    """So many times what the object stores of all nodes hold, made block by block while it is consumed."""
    blocks = int(times * ray.cluster_resources()["object_store_memory"] // block) // 2 * 2
    rows = ray.data.range(blocks, override_num_blocks=blocks)
    return rows.map_batches(lambda batch: {**batch, "payload": np.ones((len(batch["id"]), block), np.uint8)})


def train(config: dict) -> None:
    """What each worker runs; the line y = 3x + 1 is to be found."""
    import torch
    from ray.train.torch import get_device, prepare_model

    model = prepare_model(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), config["rate"])
    shards = {name: ray.train.get_dataset_shard(name) for name in ("train", "validation")}
    for epoch in range(config["epochs"]):
        seen = {name: [] for name in shards}
        for name, shard in shards.items():
            losses = []
            # Shuffled within a buffer only, so that the rows need not be in memory all at once.
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
    """Each trial reads the data set for itself."""
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
            # With `detailed`, what each rank has reported is kept, and can be added up.
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
