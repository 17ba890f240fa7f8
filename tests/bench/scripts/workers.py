"""Start a group of train workers on the driver's node, and keep it until the job is stopped."""

import argparse
import time

import ray
import torch.distributed
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

import mlplatform

READY = "all workers are ready"
KEPT_SECONDS = 300
"""The benchmark stops the job long before."""


def train() -> None:
    # What most trainings import.
    import lightning  # noqa: F401
    import mlflow  # noqa: F401

    torch.distributed.barrier()
    if ray.train.get_context().get_world_rank() == 0:
        print(READY, flush=True)
    time.sleep(KEPT_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=8)
    args = parser.parse_args()
    ray.init()
    node = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
    # A node with fewer CPUs than workers holds them too.
    scaling = ScalingConfig(num_workers=args.workers, resources_per_worker={"CPU": 0.1}, label_selector=node)
    with mlplatform.job_run(experiment="bench"):
        TorchTrainer(train, scaling_config=scaling, run_config=mlplatform.run_config("fit")).fit()


if __name__ == "__main__":
    main()
