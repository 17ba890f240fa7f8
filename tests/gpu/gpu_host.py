"""GPUs of this machine and the torch beside them: what a test needs before it can run, and what the report shows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from mlplatform_stack.host import Host, this_host

Run = Callable[..., Any]
"""Type of the fixture `run_lesson`, which returns the `Left` of a lesson."""

NO_GPU = (
    "This machine has no GPU that `nvidia-smi --list-gpus` or /dev/kfd shows, so nothing was tested: "
    "run `make test-gpu` on one that has."
)

_QUERIES = {
    "cuda": ["nvidia-smi", "--query-gpu=index,name,memory.total,driver_version", "--format=csv"],
    "rocm": ["rocm-smi", "--showproductname", "--showmeminfo", "vram", "--showdriverversion"],
}

_PROBE = """
import json, torch
numbers = range(torch.cuda.device_count())
print(json.dumps({
    "build": torch.__version__,
    "names": [torch.cuda.get_device_name(number) for number in numbers],
    "sums": [float(torch.ones(3, device=f"cuda:{number}").sum()) for number in numbers],
}))
"""


@dataclass(frozen=True)
class Torch:
    """The torch of this environment.

    Attributes:
        build: its version with the platform that it was built for, such as "2.15.0+cu130".
        names: the GPUs that it sees.
        sums: the sum of three ones, computed on each GPU.
    """

    build: str
    names: list[str]
    sums: list[float]


@cache
def host() -> Host:
    """Hardware of this machine."""
    return this_host()


@cache
def torch_here() -> Torch:
    """Ask torch in a process of its own, because this one must stay without a context on the GPUs."""
    done = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, f"torch cannot use the GPUs:\n{done.stderr}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return Torch(**found)


def devices() -> str:
    """Names, memory and driver of the GPUs, as the vendor's tool prints them."""
    try:
        done = subprocess.run(_QUERIES[host().accelerator], capture_output=True, text=True, check=False, timeout=60)
    except FileNotFoundError as error:
        return f"{host().gpus} GPUs; {error.filename} is not installed"
    return (done.stdout or done.stderr).strip()


def needs(gpus: int) -> pytest.MarkDecorator:
    """Mark that skips a test on a machine with fewer GPUs."""
    found = host().gpus
    reason = f"needs {gpus} GPUs, and this machine has {found}" if found else NO_GPU
    return pytest.mark.skipif(found < gpus, reason=reason)
