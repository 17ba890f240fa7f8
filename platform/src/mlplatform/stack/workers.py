"""Compose file of the workers for any number of GPUs."""

from __future__ import annotations


def render_workers(accelerator: str, count: int) -> str:
    """The workers' compose file with one worker for each of `count` GPUs, in the form of the shipped ones."""
    services, volumes = [], []
    for index in range(count):
        lines = [
            f"  ray-worker-{index}:",
            "    extends: {file: base.yaml, service: worker}",
            f"    container_name: ${{STACK_PREFIX:-}}ray-worker-{index}",
            f"    hostname: ray-worker-{index}",
        ]
        if accelerator == "cuda":
            lines += [
                "    deploy:",
                "      resources:",
                "        reservations:",
                f'          devices: [{{driver: nvidia, device_ids: ["{index}"], capabilities: [gpu]}}]',
            ]
        if accelerator == "rocm":
            lines += [
                # Render nodes are numbered from 128 (the kernel's drm_drv.c gives each kind 64 minors).
                f"    devices: [/dev/kfd, /dev/dri/renderD{128 + index}]",
                '    group_add: [video, "${RENDER_GID:-render}"]',
            ]
        lines.append(f'    volumes: ["ray-worker-{index}-logs:/tmp/ray"]')
        services.append("\n".join(lines))
        volumes.append(f"  ray-worker-{index}-logs:")
    mounts = "".join(f"      - ray-worker-{index}-logs:/logs/ray-worker-{index}:ro\n" for index in range(count))
    carrier = (
        "\n\n  log-carrier:\n    extends: {file: base.yaml, service: log-carrier}\n"
        f"    container_name: ${{STACK_PREFIX:-}}log-carrier\n    volumes:\n{mounts}"
    )
    header = f"# Written by `make env` for {count} GPUs; delete it and run `make env` again when their number changes."
    return f"{header}\nservices:\n" + "\n\n".join(services) + carrier + "\nvolumes:\n" + "\n".join(volumes) + "\n"
