"""Compose file of the workers for any number of GPUs."""

from __future__ import annotations

import json
import re
from typing import Any


def render_workers(accelerator: str, count: int) -> str:
    """Return the workers' compose file with one worker per GPU, for `count` GPUs, equivalent to the shipped ones.

    It is JSON, a subset of YAML.
    """
    names = [f"ray-worker-{index}" for index in range(count)]
    services = {name: _worker(name, accelerator, index) for index, name in enumerate(names)}
    services["log-shipper"] = {
        "extends": {"file": "base.yaml", "service": "log-shipper"},
        "container_name": "${STACK_PREFIX:-}log-shipper",
        "volumes": [f"{name}-logs:/logs/{name}:ro" for name in names],
    }
    services["ownership"] = {
        "extends": {"file": "base.yaml", "service": "ownership"},
        "container_name": "${STACK_PREFIX:-}ownership",
        "volumes": [f"{name}-logs:/volumes/ray/{name}-logs" for name in names],
    }
    content = {"services": services, "volumes": {f"{name}-logs": None for name in names}}
    header = f"# Written by `make env` for {count} GPUs; delete it and run `make env` again when their number changes."
    return f"{header}\n{json.dumps(content, indent=2)}\n"


def count(text: str) -> int:
    """Return the number of workers in a file of `render_workers`."""
    return len(set(re.findall(r'"(ray-worker-\d+)":', text)))


def _worker(name: str, accelerator: str, index: int) -> dict[str, Any]:
    service: dict[str, Any] = {
        "extends": {"file": "base.yaml", "service": "worker"},
        "container_name": f"${{STACK_PREFIX:-}}{name}",
        "hostname": name,
    }
    if accelerator == "cuda":
        device = {"driver": "nvidia", "device_ids": [str(index)], "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    if accelerator == "rocm":
        # Render nodes are numbered from 128 (the kernel's drm_drv.c gives each kind 64 minors).
        service["devices"] = ["/dev/kfd", f"/dev/dri/renderD{128 + index}"]
        service["group_add"] = ["video", "${RENDER_GID:-44}"]
    service["volumes"] = [f"{name}-logs:/tmp/ray"]
    return service
