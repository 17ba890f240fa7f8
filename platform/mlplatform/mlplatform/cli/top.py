"""`mlplatform top`: the use of nodes, GPUs and running jobs as the gateway returns it, live in a terminal."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from mlplatform.errors import UnreachableError

if TYPE_CHECKING:
    from mlplatform.api import cluster

_REFRESH_SECONDS = 2.0

_UNKNOWN = "-"

# xterm's control sequences: a screen of its own without a cursor, and the return to the previous screen.
_OPEN, _CLOSE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_TO_TOP, _END_LINE, _END_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


def top(
    once: Annotated[bool, typer.Option("--once", help="Print the figures and exit, as without a terminal.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as one line of JSON and exit.")] = False,
) -> None:
    """Show live how much of each node and GPU is in use, and by which jobs; Ctrl-C ends it."""
    from mlplatform.api.cluster import Utilisation
    from mlplatform.cli.output import print_json, terminal
    from mlplatform.client.connection import Connection

    link = Connection()

    def read() -> Utilisation:
        return link.read(Utilisation, "GET", "/platform/utilisation")

    use = read()
    if as_json:
        return print_json([use])
    shown = _tables(use)
    if once or not sys.stdout.isatty():
        print(shown)
        return
    try:
        print(_OPEN, end="", file=terminal())
        while True:
            _draw(shown)
            time.sleep(_REFRESH_SECONDS)
            try:
                shown = _tables(read())
            except UnreachableError as error:
                shown = textwrap.fill(str(error), shutil.get_terminal_size().columns)
    except KeyboardInterrupt:
        pass
    finally:
        print(_CLOSE, end="", flush=True, file=terminal())


def _draw(text: str) -> None:
    """Replace the screen's contents; what does not fit is cut."""
    from mlplatform.cli.output import terminal
    from mlplatform.text.terminal import printable

    width, height = shutil.get_terminal_size()
    lines = [f"{time.strftime('%H:%M:%S')}, every {_REFRESH_SECONDS:g} s", "", *printable(text).splitlines()]
    if len(lines) > height:
        lines[height - 1 :] = ["... more lines than this terminal has; `mlplatform top --once` prints all of them"]
    drawn = f"{_END_LINE}\n".join(line[:width] for line in lines)
    print(_TO_TOP, drawn, _END_LINE, _END_SCREEN, sep="", end="", flush=True, file=terminal())


def _tables(use: cluster.Utilisation) -> str:
    """Return the tables of the use: nodes, GPUs, running jobs."""
    jobs = use.jobs
    tables = [
        _table(("Node", "CPUs reserved", "Memory"), map(_node, use.nodes)) or "No node has joined yet.",
        _table(("GPU", "Model", "Use", "Memory", "Jobs"), map(_gpu, use.gpus)),
        _table(("Job", "User", "CPUs", "Memory", "GPUs", "Command"), map(_job, jobs)) or "No job is running.",
        f"The first {len(jobs)} of {use.running} running jobs." if len(jobs) < use.running else "",
    ]
    return "\n\n".join(filter(None, tables))


def _node(node: cluster.NodeUse) -> Sequence[str]:
    return node.name, f"{node.cpus_reserved:g} of {node.cpus:g}", _used(node.memory_used, node.memory_total)


def _gpu(gpu: cluster.GpuUse) -> Sequence[str]:
    holders = ", ".join(f"{job_id} ({amount:g})" for job_id, amount in gpu.holders.items())
    memory = _used(gpu.memory_used, gpu.memory_total)
    return f"{gpu.node}:{gpu.index}", gpu.name or _UNKNOWN, _percent(gpu.percent), memory, holders or "free"


def _job(job: cluster.JobUse) -> Sequence[str]:
    gpus = ", ".join(map(_held, job.gpus))
    cpus = _UNKNOWN if job.cpus is None else f"{job.cpus:.1f}"
    memory = _UNKNOWN if job.memory is None else f"{_gib(job.memory)} GiB"
    return job.id, job.user, cpus, memory, gpus or _UNKNOWN, " ".join(job.command.split())


def _held(gpu: cluster.HeldGpu) -> str:
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
