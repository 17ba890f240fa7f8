"""Stand-in for the library that measures NVIDIA's GPUs, in place of the one in Ray's agents: one GPU of 40 GiB.

`/tmp/gpu_use.json` in the container has its load and the memory in use, as in `{"percent": 0, "memory": 0}`, in bytes;
without that file, it computes and uses no memory.
The names are those that `ray.dashboard.modules.reporter.gpu_providers` of Ray 2.60 reads.
"""

import json
from pathlib import Path
from types import SimpleNamespace

USE = Path("/tmp/gpu_use.json")
TOTAL = 40 << 30


class NVMLError(Exception):
    """Something that this GPU cannot do."""


def _use():
    return SimpleNamespace(**(json.loads(USE.read_text()) if USE.exists() else {"percent": 90, "memory": 0}))


def nvmlInit(*_):
    """Do nothing."""


nvmlShutdown = nvmlInit


def nvmlDeviceGetCount():
    return 1


def nvmlDeviceGetHandleByIndex(index):
    return index


def nvmlDeviceGetMemoryInfo(_):
    return SimpleNamespace(used=_use().memory, total=TOTAL, free=TOTAL - _use().memory)


def nvmlDeviceGetUtilizationRates(_):
    return SimpleNamespace(gpu=_use().percent, memory=0)


def nvmlDeviceGetComputeRunningProcesses(_):
    return []


nvmlDeviceGetGraphicsRunningProcesses = nvmlDeviceGetComputeRunningProcesses


def nvmlDeviceGetName(_):
    return "Stand-in GPU"


def nvmlDeviceGetUUID(_):
    return "GPU-00000000-0000-0000-0000-000000000000"


def __getattr__(name):
    """Return a function that fails for everything else, such as parts of GPUs."""

    def fails(*_):
        raise NVMLError(f"{name} is not available.")

    return fails
