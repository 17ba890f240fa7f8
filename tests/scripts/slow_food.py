"""Train the lesson `ray_food.py`, submitted beside it, with photos from a slow disk.

Without a GPU, training keeps every core busy, and jobs at once take as long as one after another. They are faster at
once if each leaves its GPU waiting, which is the case with real photos: for them, each read takes longer here.
"""

import time

import food
import ray_food
from torchvision.datasets import ImageFolder

SECONDS_PER_PHOTO = 0.03


class SlowFolder(ImageFolder):
    """Folder of photos, each of which takes SECONDS_PER_PHOTO more to read."""

    def __getitem__(self, index: int):
        time.sleep(SECONDS_PER_PHOTO)
        return super().__getitem__(index)


def train(config: dict) -> None:
    """Training function on each worker, which imports the lesson itself and so has its own `train`."""
    food.ImageFolder = SlowFolder
    ray_food.train(config)


if __name__ == "__main__":
    ray_food.train = train
    ray_food.main()
