"""The hardware of this host, from which `make env` derives settings and against which a start checks them.

The drivers and models of its NVIDIA GPUs are compared with what the image's torch supports.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mlplatform.node import gpu_watch
from mlplatform_stack.docker import answer
from mlplatform_stack.settings import Accelerator

_LOCK = Path("images/ray/requirements.txt")

# By CUDA major: oldest driver (NVIDIA's table of minor version compatibility), oldest compute capability in the wheels.
SUPPORTED = {13: (580, 7.5)}

_OTHER_TORCH = "set TORCH_INDEX_URL in .env to an index with builds of torch for CUDA 12"


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


def driver_problems(root: Path, torch_index: str) -> Iterator[str]:
    """Yield why torch of the checkout's lock does not use this host's NVIDIA GPUs; another index has other builds."""
    cuda = locked_cuda(root)
    if torch_index or cuda not in SUPPORTED or not shutil.which("nvidia-smi"):
        return
    driver, capability = SUPPORTED[cuda]
    for found in sorted(set(_query("driver_version"))):
        if int(found.partition(".")[0]) < driver:
            yield (
                f"The NVIDIA driver {found} is older than {driver}, so torch for CUDA {cuda} would train on the CPU: "
                f"install driver {driver} or later, or {_OTHER_TORCH}."
            )
    for found in sorted(set(_query("compute_cap,name"))):
        number, _, name = found.partition(",")
        if float(number) < capability:
            yield (
                f"The GPU{name} has compute capability {number}, less than the {capability} that torch for CUDA {cuda} "
                f"needs: {_OTHER_TORCH}, or ACCELERATOR=cpu."
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
