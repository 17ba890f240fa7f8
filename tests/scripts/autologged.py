"""Train with Lightning and autologging on two ranks, with Ray Train or Lightning's DDP; each enters `job_run`."""

from __future__ import annotations

import sys

import mlflow
import numpy as np

import mlplatform

PARAMS = {"lr": 0.1, "text": "x" * 10_000, "layers[0]": 3}


def train(config: dict | None = None) -> None:
    import torch
    from lightning import pytorch as pl
    from torch.utils.data import DataLoader, TensorDataset

    class Line(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, batch):
            return self.layer(batch)

        def training_step(self, batch, index):
            loss = (self.layer(batch[0]) - batch[1]).square().mean()
            self.log("loss", loss, on_step=False, on_epoch=True, prog_bar=True)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    mlflow.pytorch.autolog(checkpoint=False)
    options = {"max_epochs": 2, "accelerator": "cpu", "logger": False, "enable_checkpointing": False}
    if "--train" in sys.argv:
        from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, prepare_trainer

        trainer = prepare_trainer(
            pl.Trainer(strategy=RayDDPStrategy(), plugins=[RayLightningEnvironment()], devices="auto", **options)
        )
    else:
        trainer = pl.Trainer(strategy="ddp", devices=2, **options)
    with mlplatform.job_run(experiment="ranks", params=PARAMS) as run:
        if "--logger" in sys.argv:
            # At the end of a fit this logger marks the run FINISHED, although the job continues.
            from lightning.pytorch.loggers import MLFlowLogger

            trainer.loggers = [MLFlowLogger(run_id=run.info.run_id)]
        inputs = torch.arange(16.0).reshape(8, 2) / 16
        trainer.fit(Line(), DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), 2))
        mlflow.log_metric("after_fit", trainer.global_rank)
        mlflow.log_image(np.zeros((8, 8, 3), np.uint8), "picture.png")
        model = mlflow.last_logged_model()
        mlflow.register_model(model.model_uri, f"line-{'train' if '--train' in sys.argv else 'ddp'}")
        rank = f"rank {trainer.global_rank} of {trainer.world_size}"
        print(f"{rank} has logged to {mlflow.get_tracking_uri()}", flush=True)


def main() -> None:
    if "--train" not in sys.argv:
        train()
        return
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    def fit() -> None:
        config = RunConfig(storage_path=mlplatform.checkpoint_uri())
        TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2), run_config=config).fit()

    if "--held" not in sys.argv:
        fit()
        return
    with mlplatform.job_run(experiment="ranks") as run:
        fit()
        print("after the fit the run is", mlflow.get_run(run.info.run_id).info.status, flush=True)


if __name__ == "__main__":
    main()
