"""Branches ray and fault_tolerance: Lightning wrapped by Ray Train, with plain Ray's own RunConfig."""

import os
import time

import lightning as L
import ray.train.lightning
import ray.train.torch
import torch
from lightning import Trainer
from lightning.pytorch.callbacks import BackboneFinetuning, Callback, EarlyStopping
from ray import train
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn, optim
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

torch.set_float32_matmul_precision("medium")
# Long enough to lose a worker meanwhile; epochs of so few images would end immediately.
config = {"initial_epochs": 2, "total_epochs": 40, "patience": 1000, "batch_size": 32, "lr": 1e-3, "pause": 1.0}


def train_func(config):
    root = os.getenv("FOOD11_DATA_DIR", "Food-11")
    prepared = transforms.Compose([transforms.Resize(32), transforms.CenterCrop(32), transforms.ToTensor()])
    train_loader, val_loader, test_loader = (
        DataLoader(datasets.ImageFolder(os.path.join(root, part), prepared), config["batch_size"])
        for part in ("training", "validation", "evaluation")
    )

    class LightningFood11Model(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.backbone = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 32))
            self.head = nn.Linear(32, 11)
            self.criterion = nn.CrossEntropyLoss()

        def step(self, batch, name):
            inputs, labels = batch
            loss = self.criterion(self.head(self.backbone(inputs)), labels)
            self.log(name, loss, prog_bar=True, sync_dist=True, on_step=False, on_epoch=True)
            return loss

        def training_step(self, batch, batch_idx):
            return self.step(batch, "train_loss")

        def validation_step(self, batch, batch_idx):
            return self.step(batch, "val_loss")

        def test_step(self, batch, batch_idx):
            return self.step(batch, "test_loss")

        def configure_optimizers(self):
            return optim.Adam(self.head.parameters(), lr=config["lr"])

    class Pause(Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            time.sleep(config["pause"])

    model = LightningFood11Model()
    trainer = Trainer(
        max_epochs=config["total_epochs"],
        devices="auto",
        accelerator="auto",
        strategy=ray.train.lightning.RayDDPStrategy(),
        plugins=[ray.train.lightning.RayLightningEnvironment()],
        callbacks=[
            Pause(),
            EarlyStopping(monitor="val_loss", patience=config["patience"], mode="min"),
            BackboneFinetuning(config["initial_epochs"], backbone_initial_lr=1e-5, should_align=True),
            ray.train.lightning.RayTrainReportCallback(),
        ],
    )
    trainer = ray.train.lightning.prepare_trainer(trainer)
    checkpoint = train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            path = os.path.join(folder, "checkpoint.ckpt")
            print(f"Resuming from {checkpoint.path}")
            trainer.fit(model, train_dataloaders=train_loader, val_dataloaders=val_loader, ckpt_path=path)
    else:
        trainer.fit(model, train_dataloaders=train_loader, val_dataloaders=val_loader)
    trainer.test(model, dataloaders=test_loader)


run_config = RunConfig(storage_path="s3://ray", failure_config=FailureConfig(max_failures=2))
scaling_config = ScalingConfig(num_workers=1, use_gpu=True, resources_per_worker={"GPU": 1, "CPU": 4})
trainer = TorchTrainer(train_func, scaling_config=scaling_config, run_config=run_config, train_loop_config=config)
result = trainer.fit()
