"""A Lightning training with one long epoch, which saves in its middle when it is asked to leave.

python saves_when_asked.py --batches=300 --pause=0.3
"""

from __future__ import annotations

import argparse
import time

import ray.train
import torch
from lightning import pytorch as pl
from ray.train import ScalingConfig
from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, RayTrainReportCallback, prepare_trainer
from ray.train.torch import TorchTrainer
from torch.utils.data import DataLoader, TensorDataset

import mlplatform


class Line(pl.LightningModule):
    """A network with one weight, which prints each of its steps."""

    def __init__(self, pause: float) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self._pause = pause

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        time.sleep(self._pause)
        print(f"Step {self.global_step}", flush=True)
        return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01)


def train(config: dict[str, float]) -> None:
    fitting = prepare_trainer(
        pl.Trainer(
            max_epochs=1,
            callbacks=[RayTrainReportCallback(), mlplatform.PreemptionCheckpoint()],
            strategy=RayDDPStrategy(),
            plugins=[RayLightningEnvironment()],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
        )
    )
    data = DataLoader(TensorDataset(torch.rand(int(config["batches"]), 1)))
    with mlplatform.resume_path(ray.train.get_checkpoint(), RayTrainReportCallback.CHECKPOINT_NAME) as path:
        fitting.fit(Line(config["pause"]), data, ckpt_path=path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--pause", type=float, default=0.3, help="seconds per batch")
    args = parser.parse_args()
    with mlplatform.job_run():
        TorchTrainer(
            train,
            train_loop_config=vars(args),
            scaling_config=ScalingConfig(num_workers=1),
            run_config=mlplatform.run_config("fit"),
        ).fit()


if __name__ == "__main__":
    main()
