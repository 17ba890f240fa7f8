"""Sum a number over two workers of Ray Train, in the job's run."""

import torch
import torch.distributed
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

import mlplatform


def train() -> None:
    number = torch.ones(1)
    torch.distributed.all_reduce(number)
    assert number.item() == 2


def main() -> None:
    with mlplatform.job_run(experiment="bench"):
        scaling, run_config = ScalingConfig(num_workers=2), mlplatform.run_config("fit")
        TorchTrainer(train, scaling_config=scaling, run_config=run_config).fit()


if __name__ == "__main__":
    main()
