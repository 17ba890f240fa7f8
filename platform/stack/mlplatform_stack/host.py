"""The hardware of this host, from which `make env` derives settings and against which a start checks them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from mlplatform.node import gpu_watch
from mlplatform_stack.docker import answer
from mlplatform_stack.settings import Accelerator


@dataclass(frozen=True)
class Host:
    """Hardware on which a stack runs.

    Attributes:
        memory: bytes that the Docker engine can use.
        cpus: CPUs that the Docker engine can use.
        accelerator: kind of the GPUs, or cpu without any.
        gpus: number of GPUs.
        open_files: limit of open files that a container can have.
        render_gid: id of the group `render`, which owns AMD's devices; empty if it is unknown or not needed.
    """

    memory: int
    cpus: int
    accelerator: Accelerator = "cpu"
    gpus: int = 0
    open_files: int = 65536
    render_gid: str = ""


def this_host() -> Host:
    """Return the hardware of this host."""
    memory, cpus = _of_engine() or (os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), os.cpu_count() or 1)
    accelerator, gpus = _gpus()
    render_gid = _render_gid() if accelerator == "rocm" else ""
    return Host(memory, cpus, accelerator, gpus, _open_files(), render_gid)


def _of_engine() -> tuple[int, int] | None:
    """Memory and CPUs of a running engine; Docker Desktop's machine has a part of the host's."""
    shown = answer("docker", "info", "--format", "{{.MemTotal}} {{.NCPU}}")
    found = re.fullmatch(r"([1-9]\d*) ([1-9]\d*)", shown)
    return (int(found[1]), int(found[2])) if found else None


def _gpus() -> tuple[Accelerator, int]:
    if nvidia := gpu_watch.of_nvidia():
        return "cuda", nvidia
    if amd := _amd_gpus():
        return "rocm", amd
    return "cpu", 0


def _amd_gpus() -> int:
    if not Path("/dev/kfd").exists():
        return 0
    # One node per GPU; the CPU's node has no SIMD units.
    nodes = Path("/sys/class/kfd/kfd/topology/nodes").glob("*/properties")
    return sum(1 for node in nodes if re.search(r"^simd_count [1-9]", node.read_text(), re.M))


def _open_files(wanted: int = 65536) -> int:
    """Return the limit of open files for containers: at most the engine's own."""
    try:
        pid = Path("/var/run/docker.pid").read_text().strip()
        limit = re.search(r"^Max open files +\d+ +(\d+)", Path(f"/proc/{pid}/limits").read_text(), re.M)
    except OSError:  # an engine that runs elsewhere, or is not yet running
        return wanted
    return min(wanted, int(limit[1])) if limit else wanted


def _render_gid() -> str:
    import grp

    try:
        return str(grp.getgrnam("render").gr_gid)
    except KeyError:
        return ""
