"""Food-11 data set and network, shared by the lessons in this folder.

Not a lesson itself: it is submitted with the folder and imported by the scripts beside it.
"""

import os
from pathlib import Path
from urllib.error import URLError

import torch
from torch import nn
from torchvision import models, transforms
from torchvision.datasets import ImageFolder

CLASSES = (
    *("Bread", "Dairy product", "Dessert", "Egg", "Fried food", "Meat"),
    *("Noodles/Pasta", "Rice", "Seafood", "Soup", "Vegetable/Fruit"),
)
# Mean and standard deviation of ImageNet, on which the backbone was pretrained.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def folder() -> Path:
    """Folder with training/, validation/ and evaluation/: FOOD11_DATA_DIR, which every container of the stack sets.

    Raises:
        FileNotFoundError: the variable is not set, or the folder has no photos.
    """
    found = os.environ.get("FOOD11_DATA_DIR")
    if not found or not Path(found, "training").is_dir():
        raise FileNotFoundError(
            f"No Food-11 photos at FOOD11_DATA_DIR={found or '(not set)'}: on the stack, run `make data SRC=<archive>` "
            "on the host; elsewhere, set it to a folder that contains training/, validation/ and evaluation/"
        )
    return Path(found)


def dataset(part: str, size: int = 224) -> ImageFolder:
    """Photos of one split as normalized tensors of shape (3, size, size), with their class index.

    Training photos are randomly cropped and flipped.

    Args:
        part: "training", "validation" or "evaluation".
        size: height and width in pixels.
    """
    if part == "training":
        cut = [transforms.RandomResizedCrop(size, scale=(0.6, 1.0)), transforms.RandomHorizontalFlip()]
    else:
        cut = [transforms.Resize((size, size))]
    steps = [*cut, transforms.ToTensor(), transforms.Normalize(MEAN, DEVIATION)]
    return ImageFolder(folder() / part, transforms.Compose(steps))


def network(pretrained: bool = False, width: float = 0.25, dropout: float = 0.2) -> models.MobileNetV2:
    """MobileNetV2 with eleven outputs; narrow by default, so that it trains in seconds on a CPU.

    Args:
        pretrained: start from ImageNet weights, which exist for width 1 only; downloaded once into torch's cache.
        width: channel multiplier relative to the original; ignored with pretrained weights.
        dropout: dropout rate before the last layer.

    Raises:
        FileNotFoundError: the weights are not in the cache and cannot be downloaded.
    """
    if pretrained:
        weights = models.MobileNet_V2_Weights.DEFAULT
        try:
            net = models.mobilenet_v2(weights=weights)
        except (URLError, OSError) as error:
            cache = Path(torch.hub.get_dir(), "checkpoints", Path(weights.url).name)
            raise FileNotFoundError(
                f"No pretrained weights at {cache}: on the stack, run `make data FROM=~/.cache` on the host; "
                f"elsewhere, save {weights.url} there ({error})"
            ) from error
    else:
        net = models.MobileNetV2(width_mult=width)
    net.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(net.last_channel, len(CLASSES)))
    return net


def freeze(net: models.MobileNetV2) -> None:
    """Freeze the backbone, so that only the last layer is trained."""
    net.features.requires_grad_(False)


def unfreeze(net: models.MobileNetV2) -> None:
    """Unfreeze the backbone, so that the whole network is trained."""
    net.features.requires_grad_(True)


def trainable(net: nn.Module) -> int:
    """Number of trainable parameters."""
    return sum(parameter.numel() for parameter in net.parameters() if parameter.requires_grad)
