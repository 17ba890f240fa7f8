"""Live use of nodes, GPUs and running jobs, as the gateway returns it, written as plain text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mlplatform.api import cluster as api

_UNKNOWN = "-"


def describe(use: api.Utilisation) -> str:
    """Return the tables of the use: nodes, GPUs, running jobs."""
    jobs = use.jobs
    tables = [
        _table(("Node", "CPUs reserved", "Memory"), map(_node, use.nodes)) or "No node has joined yet.",
        _table(("GPU", "Model", "Use", "Memory", "Jobs"), map(_gpu, use.gpus)),
        _table(("Job", "User", "CPUs", "Memory", "GPUs", "Command"), map(_job, jobs)) or "No job is running.",
        f"The first {len(jobs)} of {use.running} running jobs." if len(jobs) < use.running else "",
    ]
    return "\n\n".join(filter(None, tables))


def _node(node: api.NodeUse) -> Sequence[str]:
    return node.name, f"{node.cpus_reserved:g} of {node.cpus:g}", _used(node.memory_used, node.memory_total)


def _gpu(gpu: api.GpuUse) -> Sequence[str]:
    holders = ", ".join(f"{job_id} ({amount:g})" for job_id, amount in gpu.holders.items())
    memory = _used(gpu.memory_used, gpu.memory_total)
    return f"{gpu.node}:{gpu.index}", gpu.name or _UNKNOWN, _percent(gpu.percent), memory, holders or "free"


def _job(job: api.JobUse) -> Sequence[str]:
    gpus = ", ".join(map(_held, job.gpus))
    cpus = _UNKNOWN if job.cpus is None else f"{job.cpus:.1f}"
    memory = _UNKNOWN if job.memory is None else f"{_gib(job.memory)} GiB"
    return job.id, job.user, cpus, memory, gpus or _UNKNOWN, " ".join(job.command.split())


def _held(gpu: api.HeldGpu) -> str:
    load = "" if gpu.percent is None else f" at {_percent(gpu.percent)}"
    return f"{gpu.amount:g} of {gpu.node}:{gpu.index}{load}"


def _percent(value: int | None) -> str:
    return _UNKNOWN if value is None else f"{value} %"


def _used(used: int | None, total: int | None) -> str:
    return _UNKNOWN if used is None or total is None else f"{_gib(used)} of {_gib(total)} GiB"


def _gib(count: float) -> str:
    return f"{count / (1 << 30):.1f}"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Align columns; empty without rows. rich would add a tenth of a second to the start of a command."""
    cells = [columns, *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells)
    return "\n".join(lines) if len(cells) > 1 else ""
