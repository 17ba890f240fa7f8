"""Sizes of a stack on a host: memory, shared memory, CPUs and GPUs of the containers in which people's code runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mlplatform_stack.host import Host
from mlplatform_stack.services import GPU_PROFILES
from mlplatform_stack.settings import StackSettings

GIB = 2**30

_HEAD = 2 * GIB
"""Use of Ray's head: 1.2 GiB after 160 jobs, and its dashboard grows with their number."""

_TWO_WORKERS = 6 * GIB
"""Memory for jobs from which a host without GPUs has two workers: each keeps 1 GiB of imported packages."""

_SHARE_OF_NOTEBOOK = 0.5
"""Part of the jobs' memory that the notebook may use beside the workers, which may use all of it together. Rarely are
all busy. Workers that exceeded it together, with three quarters each, made a host of 24 GB unusable for 50 minutes
instead: without swap, the kernel discards the programs' pages before it ends a process."""

_CPUS_OF_TUTORIALS = 8
"""Common tutorials request this many for one job; they are declared, nothing enforces them."""


@dataclass(frozen=True)
class Choice:
    """A setting's value on a host, and the reason for it in words."""

    setting: str
    value: str
    reason: str


def memory_of_jobs(host: Host) -> int:
    """Return the bytes that the kernel, the services and Ray's head leave to workers and the notebook.

    The services use 2 GiB under load, half of it MLflow and the object store; on a larger host, they and the cache of
    files get more.
    """
    services = min(max(2 * GIB, host.memory // 5), 8 * GIB)
    return max(host.memory - services - _HEAD, GIB)


def choices(host: Host) -> list[Choice]:
    """Return the settings that follow from a host's hardware, in the order of `.env.example`."""
    return [*_hardware(host), *_memory(host), *_processes(host)]


def sizes_of_workers(host: Host, workers: int) -> list[Choice]:
    """Return the settings that depend on the number of workers among which a host is divided."""
    return [_cpus(host, workers), *_worker_memory(host, workers)]


def choices_for_joined(host: Host) -> list[Choice]:
    """Return the settings of a host that has one worker of another host's stack, and none of its services."""
    memory = _limit(host.memory - max(GIB, host.memory // 10))
    return [
        Choice("ACCELERATOR", host.accelerator, "its GPUs, if any"),
        Choice("WORKER_CPUS", str(max(_CPUS_OF_TUTORIALS, host.cpus)), "all, and at least those of tutorials"),
        Choice("WORKER_GPUS", str(host.gpus), "all"),
        *_parts_of_worker(memory, "nine tenths, and at least 1 GiB for the host itself"),
        _open_files(host),
        Choice("RENDER_GID", host.render_gid, "the host's group of AMD's devices"),
    ]


def _hardware(host: Host) -> Iterator[Choice]:
    workers = _workers(host)
    layout = "gpu" if workers == 2 else "host"
    found = f"{host.gpus} GPU{'s' if host.gpus != 1 else ''}" if host.gpus else "no GPU"
    yield Choice("ACCELERATOR", host.accelerator, f"the host has {found}")
    if host.gpus:
        reason = "one GPU for each of two workers" if layout == "gpu" else "one worker with all GPUs"
    else:
        reason = (
            f"{_gib(memory_of_jobs(host))} for jobs are enough for {'two workers' if workers == 2 else 'one worker'}"
        )
    yield Choice("WORKER_LAYOUT", layout, reason)
    yield _cpus(host, workers)
    yield Choice("WORKER_GPUS", str(host.gpus // workers), "as many as each worker gets")


def _cpus(host: Host, workers: int) -> Choice:
    cpus = max(_CPUS_OF_TUTORIALS, host.cpus // workers)
    share = {1: "all", 2: "half"}.get(workers, f"1/{workers}")
    reason = f"{share} of {host.cpus} CPUs, and at least the {_CPUS_OF_TUTORIALS} of tutorials"
    return Choice("WORKER_CPUS", str(cpus), reason)


def _worker_memory(host: Host, workers: int) -> Iterator[Choice]:
    jobs = memory_of_jobs(host)
    worker = _limit(jobs / workers)
    share = {1: "what", 2: "half of what"}.get(workers, f"1/{workers} of what")
    return _parts_of_worker(worker, f"{share} services and head leave of {_gib(host.memory)} ({_gib(jobs)})")


def _parts_of_worker(memory: int, reason: str) -> Iterator[Choice]:
    yield Choice("WORKER_MEMORY", _text(memory), reason)
    yield Choice("WORKER_SHM", _text(memory // 2), "half of the worker's memory, for data loaders and objects")
    yield Choice("WORKER_OBJECT_STORE", str(memory // 8), "an eighth of the worker's memory")


def _open_files(host: Host) -> Choice:
    return Choice("OPEN_FILES", str(host.open_files), "at most the limit of Docker's engine")


def _memory(host: Host) -> Iterator[Choice]:
    jobs = memory_of_jobs(host)
    yield from _worker_memory(host, _workers(host))
    head = 2 * _HEAD if host.memory >= 16 * GIB else _HEAD
    yield Choice("RAY_HEAD_MEMORY", _text(head), "twice its usual use" if head > _HEAD else "its usual use")
    notebook = _limit(jobs * _SHARE_OF_NOTEBOOK)
    yield Choice("NOTEBOOK_SHM", _text(min(notebook // 2, 16 * GIB)), "half of the notebook's memory, 16 GiB at most")
    yield Choice("NOTEBOOK_MEMORY", _text(notebook), f"half of the {_gib(jobs)} that it shares with the workers")


def _processes(host: Host) -> Iterator[Choice]:
    yield _open_files(host)
    if host.accelerator == "rocm":
        yield Choice("RENDER_GID", host.render_gid, "the host's group of AMD's devices")
    if host.accelerator != "cpu":
        yield Choice("COMPOSE_PROFILES", ",".join(GPU_PROFILES), "with the exporter of GPU metrics")
    yield Choice("JOB_STARTS", str(min(max(4, host.cpus // 2), 16)), f"one for two of {host.cpus} CPUs, 4 to 16")


def misfits(settings: StackSettings, host: Host) -> Iterator[str]:
    """Yield a sentence for each setting that no longer fits its host, such as after a move to a smaller one."""
    jobs = memory_of_jobs(host)
    workers = _declared_workers(settings, host)
    limits = (
        ("WORKER_MEMORY", settings.worker_memory * workers, settings.worker_memory, jobs / max(workers, 1)),
        ("NOTEBOOK_MEMORY", settings.notebook_memory, settings.notebook_memory, jobs * _SHARE_OF_NOTEBOOK),
    )
    for name, together, limit, fitting in limits:
        if together > jobs:
            each = f" for each of {workers} workers" if together > limit else ""
            yield (
                f"{name} is {_gib(limit)}{each}, more than the {_gib(jobs)} that services and head leave of this "
                f"host's {_gib(host.memory)}: set {name}={_text(_limit(fitting))} in .env."
            )
    shared = (
        ("WORKER", settings.worker_shm, settings.worker_memory),
        ("NOTEBOOK", settings.notebook_shm, settings.notebook_memory),
    )
    for name, shm, limit in shared:
        if shm > limit:
            yield (
                f"{name}_SHM is {_gib(shm)}, more than the {_gib(limit)} of {name}_MEMORY, towards which it counts: "
                f"set {name}_SHM={_text(limit // 2)} in .env."
            )
    if settings.worker_object_store > settings.worker_shm:
        yield (
            f"WORKER_OBJECT_STORE is {_gib(settings.worker_object_store)}, more than the {_gib(settings.worker_shm)} "
            "of WORKER_SHM, so that Ray would keep objects on the disk: set "
            f"WORKER_OBJECT_STORE={settings.worker_shm // 4} in .env."
        )
    yield from _gpu_misfits(settings, host)


def _gpu_misfits(settings: StackSettings, host: Host) -> Iterator[str]:
    if settings.accelerator == "cpu":
        if host.gpus:
            yield (
                f"ACCELERATOR=cpu, but this host has {host.gpus} GPUs, which no job can use: delete .env and run "
                "`make env`, or keep it if that is intended."
            )
        return
    declared = settings.worker_gpus * _declared_workers(settings, host)
    if declared != host.gpus:
        yield (
            f"The workers declare {declared:g} GPUs to Ray (WORKER_GPUS={settings.worker_gpus:g}, "
            f"WORKER_LAYOUT={settings.worker_layout}), but this host has {host.gpus}: set both as `make env` would, to "
            f"{host.gpus // _workers(host)} and {'gpu' if _workers(host) == 2 else 'host'}."
        )


def _declared_workers(settings: StackSettings, host: Host) -> int:
    return {"gpu": 2, "host": 1, "generated": host.gpus}[settings.worker_layout]


def _workers(host: Host) -> int:
    """Number of workers: lessons on several workers and on failover expect two."""
    if host.gpus:
        return 2 if host.gpus == 2 else 1
    return 2 if memory_of_jobs(host) >= _TWO_WORKERS else 1


def _limit(size: float) -> int:
    """Round down to whole GiB, below 4 GiB to quarters."""
    unit = GIB if size >= 4 * GIB else GIB // 4
    return int(size // unit * unit)


def _text(size: int) -> str:
    return f"{size // GIB}g" if size % GIB == 0 else f"{size // 2**20}m"


def _gib(size: float) -> str:
    return f"{size / GIB:.3g} GiB"
