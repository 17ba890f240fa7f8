"""Substitute the CPU for a GPU that a worker only declares, for scripts that request a GPU by name.

Python imports a module of this name at start, so it has to be light: it patches a module only when that module is
imported. `make tutorial` adds it if no worker has a GPU; jobs of the platform never use it.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def gloo_for_nccl(distributed: ModuleType) -> None:
    """Make `torch.distributed.init_process_group("nccl")` join a gloo group; Ray Train calls it with `use_gpu=True`."""
    init = distributed.init_process_group

    @functools.wraps(init)
    def init_process_group(backend: str | None = None, *arguments: Any, **options: Any) -> None:
        init("gloo" if backend == "nccl" else backend, *arguments, **options)

    distributed.init_process_group = init_process_group


class HalfPrecision:
    """Hooks that save activations for the backward pass as bfloat16.

    They are in a GPU's memory otherwise. MobileNetV2 saves 4.7 GiB for a batch of 64, which with the data loaders is
    more than the 8 GiB of a worker on a host with 24 GB.
    """

    LARGE = 2**20
    """Numbers in a tensor: no weight of MobileNetV2 has as many."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._last: tuple[Any, Any] | None = None

    def pack(self, tensor: Any) -> Any:
        """Convert a large tensor; one that is saved twice in a row, by two layers, is converted once."""
        if tensor.dtype is not self._torch.float32 or tensor.numel() < self.LARGE:
            return tensor
        if self._last is None or not _same(self._last[0], tensor):
            self._last = tensor.detach(), (tensor.bfloat16(),)
        return self._last[1]

    def unpack(self, saved: Any) -> Any:
        """Convert back what `pack` converted."""
        return saved[0].float() if isinstance(saved, tuple) else saved


def _same(first: Any, second: Any) -> bool:
    """Return whether two tensors, of which the first still exists, have the same memory in the same state."""
    return bool(
        first.data_ptr() == second.data_ptr() and first._version == second._version and first.shape == second.shape
    )


def cpu_for_gpu(trainer: ModuleType) -> None:
    """Make Lightning's `Trainer(accelerator="gpu")` train on the CPU."""
    fit = trainer.Trainer.fit

    @functools.wraps(fit)
    def in_half_precision(self: Any, *arguments: Any, **options: Any) -> None:
        hooks = HalfPrecision(trainer.torch)
        with trainer.torch.autograd.graph.saved_tensors_hooks(hooks.pack, hooks.unpack):
            fit(self, *arguments, **options)

    trainer.Trainer.fit = in_half_precision
    init = trainer.Trainer.__init__

    @functools.wraps(init)
    def on_cpu(self: Any, *, accelerator: Any = "auto", **options: Any) -> None:
        init(self, accelerator="cpu" if accelerator in ("gpu", "cuda") else accelerator, **options)

    trainer.Trainer.__init__ = on_cpu


def cpu_for_cuda(manager: ModuleType) -> None:
    """Make Ray Train assign the CPU to workers with a GPU, for `get_device()` and its Lightning strategies."""
    cuda = manager.CUDATorchDeviceManager
    cuda.get_devices = lambda self: [manager.torch.device("cpu")]
    cuda.supports_stream = lambda self: False


def release_activations(_: ModuleType) -> None:
    """Let the C library return large blocks to the system at once.

    Activations are in a GPU's memory otherwise. Here they are on the heap, which keeps what is freed, and each of the
    tutorial's data loaders, 32 per training, inherits it: 11 GiB for a batch of 32, with 8 MiB of parameters.
    """
    m_mmap_threshold = -3  # malloc.h of glibc; 1 MiB, far above objects of Python
    ctypes.CDLL(None).mallopt(m_mmap_threshold, 2**20)


class AfterImport(MetaPathFinder):
    """Import hook that patches a module right after it is loaded."""

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
            "torch.nn": release_activations,
            "torch.distributed.distributed_c10d": gloo_for_nccl,
            "lightning.pytorch.trainer.trainer": cpu_for_gpu,
            "ray.air._internal.device_manager.nvidia_gpu": cpu_for_cuda,
        }
    ),
)
