"""Small, deterministic stand-in for Food-11: eleven classes of tiny images that differ in color and stripes.

python tests/lessons/stand_in.py FOLDER               FOLDER/training/class_00/0000.jpg, ... as lessons read it
python tests/lessons/stand_in.py --original FOLDER    FOLDER/training/0_0.jpg, ... as the published archive has it
"""

from __future__ import annotations

import argparse
import colorsys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = 11
# Images per class.
FEW: Mapping[str, int] = {"training": 12, "validation": 4, "evaluation": 4}


def write(folder: Path, counts: Mapping[str, int] = FEW, size: int = 48, original: bool = False) -> Path:
    """Write the images below `folder` and return it.

    Args:
        folder: use it as FOOD11_DATA_DIR, or as the content of an archive.
        counts: images per class, for each split.
        size: height and width of each image in pixels.
        original: name them `<class>_<number>.jpg` in one folder per split, as in the published archive.
    """
    for place, (part, count) in enumerate(counts.items()):
        for kind in range(CLASSES):
            for number in range(count):
                name = f"{kind}_{number}.jpg" if original else f"class_{kind:02d}/{number:04d}.jpg"
                path = folder / part / name
                path.parent.mkdir(parents=True, exist_ok=True)
                picture(kind, (place, kind, number), size).save(path, quality=85)
    return folder


def picture(kind: int, seed: tuple[int, ...], size: int) -> Image.Image:
    """Return one image of a class: its color, its stripes, and noise."""
    random = np.random.default_rng(seed)
    color = np.array(colorsys.hsv_to_rgb(kind / CLASSES, 0.9, 0.9))
    columns = np.arange(size) + random.uniform(0, size)
    stripes = 0.75 + 0.25 * np.sign(np.sin(columns * 2 * np.pi * (kind + 1) / size))
    pixels = color * stripes[None, :, None] + random.normal(0, 0.08, (size, size, 3))
    return Image.fromarray((pixels.clip(0, 1) * 255).astype(np.uint8))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--original", action="store_true", help="use the file names of the published archive")
    args = parser.parse_args()
    print(write(args.folder, original=args.original))
