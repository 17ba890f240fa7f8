"""Use that one job makes of its GPUs: whether they compute, how much they have computed, and memory beyond its part."""

from __future__ import annotations

from collections.abc import Sequence

from mlplatform.gateway.upstream.utilisation import GpuUse

_IDLE_PERCENT = 5
"""A GPU that computes for a smaller part of a second does nothing. Over half an hour that is measured 120 times, and a
job that computes in bursts for a tenth of the time is then missed with a probability of 0.9^120, or 1 in 300,000."""

_MEMORY_TOLERANCE = 1.02
"""A process needs some memory beyond the limit that its framework keeps."""


def held_by(job_id: str, gpus: Sequence[GpuUse]) -> list[GpuUse]:
    """Return the GPUs of which a job holds at least a part."""
    return [gpu for gpu in gpus if gpu.holders.get(job_id)]


def are_idle(gpus: Sequence[GpuUse]) -> bool:
    """Return whether all GPUs of a job are measured, and none computes."""
    return bool(gpus) and all(gpu.percent is not None and gpu.percent < _IDLE_PERCENT for gpu in gpus)


def computing(job_id: str, gpus: Sequence[GpuUse]) -> float | None:
    """Return how many GPUs compute for a job, as in 0.5 for one of two halves; None if nothing measures them.

    What a shared GPU computes counts for its holders in proportion to their parts.
    """
    if not gpus or any(gpu.percent is None for gpu in gpus):
        return None
    return sum((gpu.percent or 0) / 100 * gpu.holders[job_id] / sum(gpu.holders.values()) for gpu in gpus)


def excess(job_id: str, gpus: Sequence[GpuUse]) -> str | None:
    """Return a sentence about GPU memory that a job uses beyond its part of a GPU; None if it does not."""
    for gpu in gpus:
        part, used, total = gpu.holders[job_id], gpu.memory_of.get(job_id), gpu.memory_total
        if part >= 1 or used is None or total is None or used <= part * total * _MEMORY_TOLERANCE:
            continue
        allowed = f"{part * total / 2**30:.1f} GiB of the {part:g} GPUs that it requests"
        return f"It uses {used / 2**30:.1f} GiB of GPU {gpu.index} on {gpu.node}, more than the {allowed}."
    return None
