"""Drivers and models of the host's NVIDIA GPUs, compared with what the image's torch supports."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

_LOCK = Path("images/ray/requirements.txt")

# By CUDA major: oldest driver (NVIDIA's table of minor version compatibility), oldest compute capability in the wheels.
SUPPORTED = {13: (580, 7.5)}

_OTHERS = "set TORCH_INDEX_URL in .env to an index with builds of torch for CUDA 12"


def problems(root: Path, torch_index: str) -> Iterator[str]:
    """Yield why torch of the checkout's lock does not use this host's NVIDIA GPUs; another index has other builds."""
    cuda = locked_cuda(root)
    if torch_index or cuda not in SUPPORTED or not shutil.which("nvidia-smi"):
        return
    driver, capability = SUPPORTED[cuda]
    for found in sorted(set(_query("driver_version"))):
        if int(found.partition(".")[0]) < driver:
            yield (
                f"The NVIDIA driver {found} is older than {driver}, so torch for CUDA {cuda} would train on the CPU: "
                f"install driver {driver} or later, or {_OTHERS}."
            )
    for found in sorted(set(_query("compute_cap,name"))):
        number, _, name = found.partition(",")
        if float(number) < capability:
            yield (
                f"The GPU{name} has compute capability {number}, less than the {capability} that torch for CUDA {cuda} "
                f"needs: {_OTHERS}, or ACCELERATOR=cpu."
            )


def locked_cuda(root: Path) -> int:
    """Return the major version of CUDA for which the image's torch is built; 0 if the lock has none."""
    lock = root / _LOCK
    found = re.search(r"^cuda-toolkit==(\d+)", lock.read_text(), re.M) if lock.is_file() else None
    return int(found[1]) if found else 0


def _query(fields: str) -> list[str]:
    """Return a line per GPU that begins with a number; drivers before 510 do not have every field."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return re.findall(r"^\d+\.\d.*$", done.stdout, re.M)
