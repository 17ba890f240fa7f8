"""Run one training function with two configurations in turn, and collect the return values of all ranks.

    mlplatform submit train/configs.py
    ray job submit --working-dir train -- python configs.py --epochs 2 5

The lesson: everything that differs between two training runs goes into the config dictionary. Each call of `fit()` runs
the function on a new group of workers. Ray Train has already created the process group, so plain code for torchrun (the
device of the local rank, `DistributedDataParallel`, `DistributedSampler`) works without any Ray code. `fit()` returns
rank 0's value; a decorator gathers those of the other ranks.
"""

import argparse
import functools
import json
import os
from collections.abc import Callable

import torch
import torch.distributed as dist
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import mlplatform


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--epochs", type=int, nargs=2, default=[2, 5], help="epochs of the first and second training run"
    )
    parser.add_argument("--workers", type=int, default=2, help="training processes")
    return parser.parse_args()


def of_every_rank(train: Callable[[dict], object]) -> Callable[[dict], list]:
    """Wrap a training function so that each rank returns the list of all ranks' return values, in rank order."""

    @functools.wraps(train)
    def train_and_gather(config: dict) -> list:
        results = [None] * dist.get_world_size()
        dist.all_gather_object(results, train(config))
        return results

    return train_and_gather


def fit_a_line(config: dict) -> dict:
    """Fit a line with DDP, written as for torchrun; `config["seeds"]` has the seed of each rank's points."""
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device(f"cuda:{local_rank}" if local_rank < torch.cuda.device_count() else "cpu")
    torch.manual_seed(config["seeds"][dist.get_rank()])
    points = torch.randn(32, 4).to(device)
    targets = points.sum(dim=1, keepdim=True)
    # The ranks' initial weights differ; DDP broadcasts those of rank 0.
    model = DistributedDataParallel(nn.Linear(4, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    epochs, losses = [], []
    for epoch in range(config["epochs"]):
        loss = nn.functional.mse_loss(model(points), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        epochs.append(epoch)
        losses.append(loss.item())
    # The ids of this rank's share of ten rows.
    shard = DataLoader(range(10), sampler=DistributedSampler(range(10)))
    rows = [int(row) for row in shard]
    weights = model.module.weight.flatten().tolist()
    return {"epochs": epochs, "losses": losses, "weights": weights, "rows": rows}


def main() -> None:
    args = arguments()
    # First the same points on every rank, then different points per rank: only gradients are shared.
    seeds = {"same": [7] * args.workers, "own": list(range(args.workers))}
    configs = {
        points: {"epochs": epochs, "seeds": seeds[points]} for points, epochs in zip(seeds, args.epochs, strict=True)
    }
    with mlplatform.job_run(experiment="train", params=configs) as run:
        for name, config in configs.items():
            trainer = TorchTrainer(
                of_every_rank(fit_a_line),
                train_loop_config=config,
                scaling_config=ScalingConfig(num_workers=args.workers),
                run_config=mlplatform.run_config(name),
            )
            ranks = trainer.fit().return_value
            print(f"Epochs of each rank, {name} points: {json.dumps([rank['epochs'] for rank in ranks])}")
            print(f"Losses of each rank, {name} points: {json.dumps([rank['losses'] for rank in ranks])}")
            print(f"Weights of each rank, {name} points: {json.dumps([rank['weights'] for rank in ranks])}")
            print(f"Rows of each rank, {name} points: {json.dumps([rank['rows'] for rank in ranks])}")
        if run:
            print(f"Run: {mlplatform.run_url(run)}")


if __name__ == "__main__":
    main()
