"""Branch lightning: Lightning's own callbacks and processes, with a GPU requested by name."""

import os

import lightning as L
import torch
from lightning import Trainer
from lightning.pytorch.callbacks import BackboneFinetuning, EarlyStopping, ModelCheckpoint
from torch import nn, optim
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

torch.set_float32_matmul_precision("medium")
config = {"initial_epochs": 1, "total_epochs": 3, "patience": 5, "batch_size": 32, "lr": 1e-3, "fine_tune_lr": 1e-5}

root = os.getenv("FOOD11_DATA_DIR", "Food-11")
prepared = transforms.Compose([transforms.Resize(32), transforms.CenterCrop(32), transforms.ToTensor()])
train_loader, val_loader, test_loader = (
    DataLoader(datasets.ImageFolder(os.path.join(root, part), prepared), config["batch_size"], num_workers=2)
    for part in ("training", "validation", "evaluation")
)


class LightningFood11Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 32))
        self.head = nn.Linear(32, 11)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, x):
        return self.head(self.backbone(x))

    def step(self, batch, name):
        inputs, labels = batch
        loss = self.criterion(self(inputs), labels)
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


trainer = Trainer(
    max_epochs=config["total_epochs"],
    accelerator="gpu",
    devices="auto",
    callbacks=[
        ModelCheckpoint(dirpath="checkpoints/", filename="food11", monitor="val_loss", mode="min", save_top_k=1),
        EarlyStopping(monitor="val_loss", patience=config["patience"], mode="min"),
        BackboneFinetuning(config["initial_epochs"], backbone_initial_lr=config["fine_tune_lr"], should_align=True),
    ],
)
model = LightningFood11Model()
trainer.fit(model, train_dataloaders=train_loader, val_dataloaders=val_loader)
trainer.test(model, dataloaders=test_loader)
