"""Puts the CPU in the place of a GPU that a worker only declares, for scripts that ask for a GPU by name.

Python imports a module of this name when it starts, so it has to be light: a change is made when the module that it
changes is imported, and not before. `make tutorial` sends it along where no worker has a GPU; jobs never use it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def gloo_for_nccl(distributed: ModuleType) -> None:
    """`torch.distributed.init_process_group("nccl")` joins a gloo group; Ray Train calls it with `use_gpu=True`."""
    init = distributed.init_process_group

    @functools.wraps(init)
    def init_process_group(backend: str | None = None, *arguments: Any, **options: Any) -> None:
        init("gloo" if backend == "nccl" else backend, *arguments, **options)

    distributed.init_process_group = init_process_group


def cpu_for_gpu(trainer: ModuleType) -> None:
    """`Trainer(accelerator="gpu")` of Lightning trains on the CPU."""
    init = trainer.Trainer.__init__

    @functools.wraps(init)
    def on_cpu(self: Any, *, accelerator: Any = "auto", **options: Any) -> None:
        init(self, accelerator="cpu" if accelerator in ("gpu", "cuda") else accelerator, **options)

    trainer.Trainer.__init__ = on_cpu


def cpu_for_cuda(manager: ModuleType) -> None:
    """Ray Train tells workers that hold a GPU to use the CPU; what `get_device()` and its Lightning strategies ask."""
    cuda = manager.CUDATorchDeviceManager
    cuda.get_devices = lambda self: [manager.torch.device("cpu")]
    cuda.supports_stream = lambda self: False


class AfterImport(MetaPathFinder):
    """Changes a module right after it was loaded."""

    def __init__(self, changes: dict[str, Callable[[ModuleType], None]]) -> None:
        self._changes = changes

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        change = self._changes.pop(fullname, None)
        spec = find_spec(fullname) if change else None
        if not (spec and spec.loader and change):
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            change(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(
    0,
    AfterImport(
        {
            "torch.distributed.distributed_c10d": gloo_for_nccl,
            "lightning.pytorch.trainer.trainer": cpu_for_gpu,
            "ray.air._internal.device_manager.nvidia_gpu": cpu_for_cuda,
        }
    ),
)
