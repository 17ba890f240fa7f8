"""Branch main: plain PyTorch; trains a new head for MobileNetV2 first, then the whole network."""

import os

import torch
from torch import nn, optim
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms

config = {"initial_epochs": 1, "total_epochs": 2, "batch_size": 32, "lr": 1e-3, "fine_tune_lr": 1e-4}

root = os.getenv("FOOD11_DATA_DIR", "Food-11")
prepared = transforms.Compose([transforms.Resize(64), transforms.CenterCrop(64), transforms.ToTensor()])
loaders = {
    part: DataLoader(datasets.ImageFolder(os.path.join(root, part), prepared), config["batch_size"], shuffle=True)
    for part in ("training", "validation", "evaluation")
}

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
food11_model = models.mobilenet_v2(weights="MobileNet_V2_Weights.DEFAULT")
food11_model.classifier = nn.Sequential(nn.Dropout(0.5), nn.Linear(food11_model.last_channel, 11))
food11_model.to(device)
criterion = nn.CrossEntropyLoss()


def mean_loss(part, optimizer=None):
    food11_model.train(optimizer is not None)
    total = 0.0
    for inputs, labels in loaders[part]:
        with torch.set_grad_enabled(optimizer is not None):
            loss = criterion(food11_model(inputs.to(device)), labels.to(device))
        if optimizer:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item()
    return total / len(loaders[part])


for parameter in food11_model.features.parameters():
    parameter.requires_grad = False
optimizer = optim.Adam(food11_model.classifier.parameters(), lr=config["lr"])
for epoch in range(config["total_epochs"]):
    if epoch == config["initial_epochs"]:
        for parameter in food11_model.features.parameters():
            parameter.requires_grad = True
        optimizer = optim.Adam(food11_model.parameters(), lr=config["fine_tune_lr"])
    print(f"Epoch {epoch + 1}: {mean_loss('training', optimizer):.4f}, {mean_loss('validation'):.4f}")
    torch.save(food11_model, "food11.pth")
print(f"Test Loss: {mean_loss('evaluation'):.4f}")
