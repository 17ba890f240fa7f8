"""Training with two ranks on different nodes, which average their gradients; counts steps, checkpoints, and resumes."""

import argparse
import socket
import tempfile
import time
from pathlib import Path

import ray.train
import ray.train.torch
import torch
from ray.train import Checkpoint, ScalingConfig
from ray.train.torch import TorchTrainer

import mlplatform

CHECKPOINT_EVERY = 3


def train(config: dict) -> None:
    rank = ray.train.get_context().get_world_rank()
    model = ray.train.torch.prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    start = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt")
        model.module.load_state_dict(state["model"])
        start = state["next"]
    for number in range(start, config["steps"]):
        time.sleep(config["pause"])
        optimizer.zero_grad()
        loss = model(torch.full((8, 4), rank + 1.0)).square().mean()
        loss.backward()
        optimizer.step()
        nodes: list = [None, None]
        torch.distributed.all_gather_object(nodes, socket.gethostname())
        weights: list = [None, None]
        torch.distributed.all_gather_object(weights, model.module.weight.sum().item())
        metrics = {
            "loss": loss.item(),
            "rank": rank,
            "loss[top]": number,
            "start": start,
            "nodes": len(set(nodes)),
            "second": int("ray-worker-second" in nodes),
            "equal": int(weights[0] == weights[1]),
        }
        if (number + 1) % CHECKPOINT_EVERY or rank:
            ray.train.report(metrics)
            continue
        with tempfile.TemporaryDirectory() as folder:
            torch.save({"model": model.module.state_dict(), "next": number + 1}, Path(folder) / "state.pt")
            ray.train.report(metrics, checkpoint=Checkpoint.from_directory(folder))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds per step")
    args = parser.parse_args()
    with mlplatform.job_run(experiment="steps", params=vars(args)):
        TorchTrainer(
            train,
            train_loop_config=vars(args),
            scaling_config=ScalingConfig(num_workers=2, placement_strategy="STRICT_SPREAD"),
            run_config=mlplatform.run_config("fit", aggregate="mean", max_failures=5),
        ).fit()


if __name__ == "__main__":
    main()
