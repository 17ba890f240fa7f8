"""Branch mlflow: the same with the tutorial's logging, a small network, and one epoch per phase."""

import os
import subprocess
import time

import mlflow
import mlflow.pytorch
import torch
from torch import nn, optim
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

mlflow.set_experiment("food11-classifier")
config = {"initial_epochs": 1, "total_epochs": 3, "batch_size": 32, "lr": 1e-3, "model_architecture": "small"}

root = os.getenv("FOOD11_DATA_DIR", "Food-11")
prepared = transforms.Compose([transforms.Resize(32), transforms.CenterCrop(32), transforms.ToTensor()])
train_loader, val_loader, test_loader = (
    DataLoader(datasets.ImageFolder(os.path.join(root, part), prepared), config["batch_size"], shuffle=True)
    for part in ("training", "validation", "evaluation")
)
food11_model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 11))
optimizer = optim.Adam(food11_model.parameters(), lr=config["lr"])
criterion = nn.CrossEntropyLoss()


def validate(loader):
    with torch.no_grad():
        return sum(criterion(food11_model(inputs), labels).item() for inputs, labels in loader) / len(loader)


try:
    mlflow.end_run()
except Exception:
    pass
finally:
    mlflow.start_run(log_system_metrics=True)
gpu_info = next(
    (
        subprocess.run(command, capture_output=True, text=True).stdout
        for command in ["nvidia-smi", "rocm-smi"]
        if subprocess.run(f"command -v {command}", shell=True, capture_output=True).returncode == 0
    ),
    "No GPU found.",
)
mlflow.log_text(gpu_info, "gpu-info.txt")
mlflow.log_params(config)

best = float("inf")
for epoch in range(config["total_epochs"]):
    started = time.time()
    for inputs, labels in train_loader:
        optimizer.zero_grad()
        loss = criterion(food11_model(inputs), labels)
        loss.backward()
        optimizer.step()
    val_loss = validate(val_loader)
    measured = {"epoch_time": time.time() - started, "train_loss": loss.item(), "val_loss": val_loss}
    mlflow.log_metrics(measured, step=epoch)
    if epoch >= config["initial_epochs"] and val_loss < best:
        best = val_loss
        mlflow.pytorch.log_model(food11_model, "food11")
# The script logs this one as text.
mlflow.log_metric("early_stopping_epoch", str(epoch))
mlflow.log_metrics({"test_loss": validate(test_loader)})
mlflow.end_run()
