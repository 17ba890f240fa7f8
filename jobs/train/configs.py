"""Run one training function with two configurations, one after the other, and collect what every rank returns.

    mlplatform submit train/configs.py
    ray job submit --working-dir train -- python configs.py --epochs 2 5

The lesson: what differs between two trainings goes into the one dictionary that the function takes; each call of
`fit()` runs it on a new group of workers. Ray Train has the process group ready, so that plain code for
`DistributedDataParallel` needs no line of Ray. What rank 0 returns comes back; a decorator asks the other ranks.
"""

import argparse
import functools
import json
from collections.abc import Callable

import torch
import torch.distributed as dist
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import mlplatform


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, nargs=2, default=[2, 5], help="of the first and of the second training")
    parser.add_argument("--workers", type=int, default=2, help="processes that train together")
    return parser.parse_args()


def of_every_rank(train: Callable[[dict], object]) -> Callable[[dict], list]:
    """The same training function, but each rank returns a list of what all have returned, in the order of ranks."""

    @functools.wraps(train)
    def train_and_gather(config: dict) -> list:
        results = [None] * dist.get_world_size()
        dist.all_gather_object(results, train(config))
        return results

    return train_and_gather


def fit_a_line(config: dict) -> dict:
    """DDP as it would be written for torchrun; `config["seeds"]` has the seed of each rank's own points."""
    torch.manual_seed(config["seeds"][dist.get_rank()])
    points = torch.randn(32, 4)
    targets = points.sum(dim=1, keepdim=True)
    # Ranks begin with different weights here; DDP sends those of rank 0 to all.
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    epochs, losses = [], []
    for epoch in range(config["epochs"]):
        loss = nn.functional.mse_loss(model(points), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        epochs.append(epoch)
        losses.append(loss.item())
    return {"epochs": epochs, "losses": losses, "weights": model.module.weight.flatten().tolist()}


def main() -> None:
    args = arguments()
    # The same points on every rank at first, then its own points for each: only the gradients are shared.
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
        if run:
            print(f"Run: {mlplatform.run_url(run)}")


if __name__ == "__main__":
    main()
