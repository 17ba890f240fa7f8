"""Probe of the metadata address of clouds, which hands out credentials of the host: no job may reach it."""

from __future__ import annotations

import subprocess

from mlplatform.settings.stack import StackSettings

RULE = "sudo iptables -I DOCKER-USER -d 169.254.0.0/16 -j REJECT"
"""Command that closes link-local addresses to all containers. Packets of the host itself do not pass the chain."""

_PROBE = "import socket; socket.create_connection(('169.254.169.254', 80), 1); print('open')"


def notes(settings: StackSettings) -> list[str]:
    """Return one sentence if a container can connect to the address; none elsewhere, as outside of clouds."""
    image = f"mlplatform-platform:{settings.version}"
    command = ["docker", "run", "--rm", "--pull=never", image, "python", "-c", _PROBE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.stdout.strip() != "open":
        return []
    return [
        "Jobs and notebooks can reach 169.254.169.254, where this cloud hands out credentials of the host. "
        f"This closes it until the host restarts: {RULE}"
    ]
