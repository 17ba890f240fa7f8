"""WireGuard interface of a container: in the kernel if that supports it, otherwise a process in user space."""

from __future__ import annotations

import subprocess
import time

from mlplatform.errors import HostError

INTERFACE = "wg0"

LAN = "eth0"
"""Interface of the container on the network of jobs."""

PORT = 51820

HUB = 128
"""Last number of the hub's address; those of hosts follow. Docker assigns the lower half of the network."""

KEEPALIVE_SECONDS = 15
"""Shorter than the 30 s after which common firewalls forget a UDP connection."""

_START_SECONDS = 10.0


def create() -> subprocess.Popen[bytes] | None:
    """Create the interface, and return its process if it is in user space.

    An interface in the kernel outlives the process that created it, and is used again.

    Raises:
        HostError: neither kind can be created.
    """
    exists = ("ip", "link", "show", INTERFACE)
    if succeeds(*exists) or succeeds("ip", "link", "add", INTERFACE, "type", "wireguard"):
        return None
    process = subprocess.Popen(["wireguard-go", "--foreground", INTERFACE])
    deadline = time.monotonic() + _START_SECONDS
    while not succeeds(*exists):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise HostError(
                "This kernel has no WireGuard, and wireguard-go could not create its interface: load the module of one "
                "of them on the host, `modprobe wireguard` or `modprobe tun`."
            )
        time.sleep(0.05)
    return process


def answer_for_others() -> None:
    """Answer ARP requests at once: by default an answer for somebody else's address waits for up to 0.8 s."""
    run("ip", "ntable", "change", "name", "arp_cache", "dev", LAN, "proxy_delay", "0")


def succeeds(*command: str) -> bool:
    """Run a command whose failure is an answer."""
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def run(*command: str, data: str | None = None) -> str:
    """Run a command and return its output.

    Raises:
        HostError: it failed; contains what it printed.
    """
    result = subprocess.run(command, input=data, capture_output=True, text=True, check=False)
    if result.returncode:
        raise HostError(f"`{' '.join(command)}` failed: {result.stderr.strip()}")
    return result.stdout
