"""Last step of installing torch from TORCH_INDEX_URL: refuse a build of another index, or for another accelerator.

If that index lacks the pinned version, uv takes the default index's build instead, whose version has no local part such
as "+rocm7.2": on a host with AMD GPUs, jobs would silently train on the CPU.
"""

import sys
from importlib.metadata import version

import torch

accelerator = sys.argv[1]
runtime = {"rocm": torch.version.hip, "cuda": torch.version.cuda, "cpu": "none"}[accelerator]
public, _, local = version("torch").partition("+")
if not (runtime and local):
    sys.exit(
        f"TORCH_INDEX_URL has no build of torch {public} for ACCELERATOR={accelerator} (installed: {version('torch')}):"
        " set it to an index that has one, or the version in images/ray/requirements.in to one that the index has."
    )
