"""Drivers of GPUs, and the devices that the workers get."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

from mlplatform.stack.checks.finding import Finding, Place
from mlplatform.stack.compose_command import compose

_ANYBODY = 0o006

_SEES_GPU = {"cuda": ("nvidia-smi", "--list-gpus"), "rocm": ("sh", "-c", "exec 3<>/dev/kfd")}
"""Commands in a container that fail without GPUs."""

_NO_GPU = "The workers do not start, or jobs find no GPU."


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
    done = _run("nvidia-smi", "--list-gpus")
    if done.returncode or not done.stdout.strip():
        reason = (done.stdout + done.stderr).strip().splitlines() or ["it lists no GPU"]
        # "Driver/library version mismatch" after an update of packages: the kernel still has the former module.
        yield Finding(f"`nvidia-smi` cannot use the GPUs ({reason[0]}).", _NO_GPU, "sudo reboot", blocks=True)


def lost(place: Place) -> Iterator[Finding]:
    """Yield each running container that no longer sees its GPUs."""
    settings = place.settings
    uses_gpu = ("ray-worker-", "notebook") if settings.notebook_gpus else "ray-worker-"
    listed = _run(*compose(place.root, "--profile", "*", "ps", "--format", "{{.Service}} {{.Name}}"))
    for service, name in (line.split() for line in listed.stdout.splitlines()):
        if settings.accelerator == "cpu" or not service.startswith(uses_gpu):
            continue
        done = _run("docker", "exec", name, *_SEES_GPU[settings.accelerator])
        if done.returncode:
            reason = (done.stdout + done.stderr).strip().splitlines() or ["no GPU"]
            yield Finding(
                f"The container {name} has lost its GPUs ({reason[0]}).",
                "After a reload of systemd or of the driver, its new processes find no GPU.",
                f"docker restart {name}",
                blocks=True,
            )


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


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
