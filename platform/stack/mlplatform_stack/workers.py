"""Workers of this host, and the devices of each: `WORKER_LAYOUT` and the number of GPUs decide on both."""

from __future__ import annotations

from typing import Any

from mlplatform_stack import sizing
from mlplatform_stack.host import Host
from mlplatform_stack.settings import Accelerator, StackSettings


def count(settings: StackSettings, host: Host, present: int) -> int:
    """Return the number of workers.

    Args:
        settings: those of the stack.
        host: hardware of this host.
        present: number in the generated file, which stays while the host has a GPU for each; 0 for none.
    """
    if settings.worker_layout != "generated":
        return {"host": 1, "gpu": 2}[settings.worker_layout]
    most = max(host.gpus - len(sizing.gpus_of_notebook(settings, host)), 1)
    too_many = host.gpus > 0 and present > most
    return most if too_many or not present else present


def services(settings: StackSettings, number: int) -> dict[str, dict[str, Any]]:
    """Return the services of this many workers: one with all GPUs, or several with one each."""
    has_all = settings.worker_layout == "host"
    found = {}
    for index in range(number):
        name = f"ray-worker-{index}"
        file = f"accelerator.{settings.accelerator}.yaml" if has_all else "base.yaml"
        found[name] = {
            "extends": {"file": file, "service": "worker"},
            "container_name": f"${{STACK_PREFIX:-}}{name}",
            "hostname": name,
            **({} if has_all else _gpu(settings.accelerator, index)),
            "volumes": [f"{logs(name)}:/tmp/ray"],
        }
    return found


def logs(worker: str) -> str:
    """Return the name of the volume with a worker's session logs."""
    return f"{worker}-logs"


def _gpu(accelerator: Accelerator, index: int) -> dict[str, Any]:
    if accelerator == "cuda":
        device = {"driver": "nvidia", "device_ids": [str(index)], "capabilities": ["gpu"]}
        return {"deploy": {"resources": {"reservations": {"devices": [device]}}}}
    if accelerator == "rocm":
        # Render nodes are numbered from 128 (the kernel's drm_drv.c gives each kind 64 minors).
        devices = ["/dev/kfd", f"/dev/dri/renderD{128 + index}"]
        return {"devices": devices, "group_add": ["video", "${RENDER_GID:-44}"]}
    return {}
