"""Branch tune: a trainer passed to Tune, an API of Ray Train V1."""

import lightning as L
import ray.train.lightning
import ray.train.torch
import torch
from lightning import Trainer
from ray import tune
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.tune.schedulers import ASHAScheduler
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

config = {"total_epochs": 4, "batch_size": tune.choice([32, 64]), "dropout_probability": tune.uniform(0.1, 0.8)}


def train_func(config):
    loader = DataLoader(TensorDataset(torch.randn(128, 8), torch.randint(0, 11, (128,))), config["batch_size"])

    class Model(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Dropout(config["dropout_probability"]), nn.Linear(8, 11))

        def training_step(self, batch, batch_idx):
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch, batch_idx):
            accuracy = (self.net(batch[0]).argmax(dim=1) == batch[1]).float().mean()
            self.log("val_accuracy", accuracy, sync_dist=True, on_step=False, on_epoch=True)

        def configure_optimizers(self):
            return optim.Adam(self.parameters(), lr=1e-3)

    trainer = Trainer(
        max_epochs=config["total_epochs"],
        devices="auto",
        accelerator="auto",
        strategy=ray.train.lightning.RayDDPStrategy(),
        plugins=[ray.train.lightning.RayLightningEnvironment()],
        callbacks=[ray.train.lightning.RayTrainReportCallback()],
    )
    trainer = ray.train.lightning.prepare_trainer(trainer)
    trainer.fit(Model(), train_dataloaders=loader, val_dataloaders=loader)


trainer = TorchTrainer(
    train_func,
    scaling_config=ScalingConfig(num_workers=1, use_gpu=True, resources_per_worker={"GPU": 0.5, "CPU": 2}),
    run_config=RunConfig(storage_path="s3://ray"),
)


def tune_asha(num_samples):
    scheduler = ASHAScheduler(max_t=config["total_epochs"], grace_period=1, reduction_factor=2)
    tuner = tune.Tuner(
        trainer,
        param_space={"train_loop_config": config},
        tune_config=tune.TuneConfig(metric="val_accuracy", mode="max", num_samples=num_samples, scheduler=scheduler),
    )
    return tuner.fit()


results = tune_asha(num_samples=4)
print(f"{len(results)} trials, best accuracy {results.get_best_result().metrics['val_accuracy']:.3f}")
