"""This machine: drivers of its GPUs, and limits of its kernel below which failures do not name the cause.

A worker that loses a GPU while it runs ends by itself (`node/gpu_watch.py`).
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

from mlplatform_stack.checks.finding import Finding, Place

_ANYBODY = 0o006

_NO_GPU = "The workers do not start, or jobs find no GPU."
_LEAST = {
    "fs.inotify.max_user_instances": (
        256,
        "Templates of the warm start and JupyterLab watch files with one instance per process, counted per user.",
    ),
    "fs.inotify.max_user_watches": (
        65536,
        "Templates of the warm start watch the folders of 6,500 files each, and start programs cold without that.",
    ),
    "kernel.pid_max": (32768, "Ray allows 16,384 processes and threads per node, and one host has several nodes."),
    "fs.file-max": (262144, "Each Ray process and the object store open thousands of files and connections."),
}
"""Least value of kernel settings, and the reason for it."""

_NO_OVERCOMMIT = "2"


def drivers(place: Place) -> Iterator[Finding]:
    """Yield what keeps the workers from this host's GPUs; none with ACCELERATOR=cpu.

    Docker's runtime of NVIDIA and the existence of /dev/kfd are among the problems of a start.
    """
    if place.settings.accelerator == "cuda":
        yield from _nvidia()
    elif place.settings.accelerator == "rocm":
        yield from _amd(place)


def _nvidia() -> Iterator[Finding]:
    if not shutil.which("nvidia-smi"):
        yield Finding(
            "The command `nvidia-smi` is missing, so this host has no driver of NVIDIA.",
            _NO_GPU,
            "install the driver as its maker's guide for your distribution describes, and restart the host",
            blocks=True,
        )
        return
    command = ["nvidia-smi", "--list-gpus"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode or not done.stdout.strip():
        reason = (done.stdout + done.stderr).strip().splitlines() or ["it lists no GPU"]
        # "Driver/library version mismatch" after an update of packages: the kernel still has the former module.
        yield Finding(f"`nvidia-smi` cannot use the GPUs ({reason[0]}).", _NO_GPU, "sudo reboot", blocks=True)


def _amd(place: Place) -> Iterator[Finding]:
    devices = [place.dev / "kfd", *sorted((place.dev / "dri").glob("renderD*"))]
    if len(devices) == 1:
        yield Finding(
            f"This host has no device {place.dev}/dri/renderD*, one of which belongs to each GPU.",
            _NO_GPU,
            "sudo modprobe amdgpu",
            blocks=True,
        )
    gid = place.settings.render_gid
    for device in filter(lambda path: path.exists(), devices):
        status = device.stat()
        if status.st_mode & _ANYBODY != _ANYBODY and str(status.st_gid) != gid:
            yield Finding(
                f"{device} belongs to the group {status.st_gid}, but RENDER_GID in .env is {gid or 'empty'}.",
                "Jobs may not open the GPU.",
                f"sed -i 's/^RENDER_GID=.*/RENDER_GID={status.st_gid}/' .env && make up",
                blocks=True,
            )


def limits(place: Place) -> Iterator[Finding]:
    """Yield each kernel setting that is too low."""
    for name, (least, why) in _LEAST.items():
        found = _read(place, name)
        if found and int(found) < least:
            yield Finding(f"{name} is {found}, less than {least}.", why, _set(name, str(least)))
    if _read(place, "vm.overcommit_memory") == _NO_OVERCOMMIT:
        yield Finding(
            "vm.overcommit_memory is 2, so that the kernel refuses memory that nobody uses yet.",
            "Python processes with torch or CUDA reserve more than they use, and fail with 'Cannot allocate memory'.",
            _set("vm.overcommit_memory", "0"),
        )


def _set(name: str, value: str) -> str:
    return f"echo '{name}={value}' | sudo tee /etc/sysctl.d/90-{name.replace('.', '-')}.conf && sudo sysctl --system"


def _read(place: Place, name: str) -> str:
    """Return a setting's value; empty where this kernel has no such setting."""
    try:
        return (place.proc / "sys" / name.replace(".", "/")).read_text().strip()
    except OSError:
        return ""
