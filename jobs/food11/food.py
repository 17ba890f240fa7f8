"""Food-11 as every lesson of this folder uses it: where its photos are, how they become tensors, and the network.

Not a lesson by itself: submitted with the folder, as all of its files are, and imported by the scripts beside it.
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
# Of ImageNet's photos, which the pretrained backbone has seen.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def folder() -> Path:
    """The folder with training, validation and evaluation; every container of the stack has it in FOOD11_DATA_DIR.

    Raises:
        FileNotFoundError: it is not set, or not filled.
    """
    found = os.environ.get("FOOD11_DATA_DIR")
    if not found or not Path(found, "training").is_dir():
        raise FileNotFoundError(
            f"no Food-11 photos at FOOD11_DATA_DIR={found or '(not set)'}: `make data SRC=<archive>` on the host fills "
            "the stack's volume; elsewhere set it to a folder that holds training/, validation/ and evaluation/"
        )
    return Path(found)


def dataset(part: str, size: int = 224) -> ImageFolder:
    """Photos of training, validation or evaluation as normalized tensors of (3, size, size), with their class.

    Those of training are cropped and mirrored at random.
    """
    if part == "training":
        cut = [transforms.RandomResizedCrop(size, scale=(0.6, 1.0)), transforms.RandomHorizontalFlip()]
    else:
        cut = [transforms.Resize((size, size))]
    steps = [*cut, transforms.ToTensor(), transforms.Normalize(MEAN, DEVIATION)]
    return ImageFolder(folder() / part, transforms.Compose(steps))


def network(pretrained: bool = False, width: float = 0.25, dropout: float = 0.2) -> models.MobileNetV2:
    """MobileNetV2 with eleven outputs; thin by default, so that a CPU trains it in seconds.

    Args:
        pretrained: start from ImageNet's weights, which exist for a width of 1 only; fetched once into torch's cache.
        width: share of the channels of the original; ignored with pretrained weights.
        dropout: before the last layer.

    Raises:
        FileNotFoundError: the weights are neither in the cache nor to be had.
    """
    if pretrained:
        weights = models.MobileNet_V2_Weights.DEFAULT
        try:
            net = models.mobilenet_v2(weights=weights)
        except (URLError, OSError) as error:
            cache = Path(torch.hub.get_dir(), "checkpoints", Path(weights.url).name)
            raise FileNotFoundError(
                f"no pretrained weights in {cache}: `make cache` on the host fills the stack's cache; elsewhere put "
                f"{weights.url} there ({error})"
            ) from error
    else:
        net = models.MobileNetV2(width_mult=width)
    net.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(net.last_channel, len(CLASSES)))
    return net


def freeze(net: models.MobileNetV2) -> None:
    """Train the last layer only."""
    net.features.requires_grad_(False)


def unfreeze(net: models.MobileNetV2) -> None:
    """Train the whole network."""
    net.features.requires_grad_(True)


def trainable(net: nn.Module) -> int:
    """How many parameters an optimizer would change."""
    return sum(parameter.numel() for parameter in net.parameters() if parameter.requires_grad)
