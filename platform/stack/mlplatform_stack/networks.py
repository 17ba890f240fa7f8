"""Addresses of Docker's networks, of the stack's that other hosts can join, and of the metadata of clouds."""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import Iterator

from mlplatform.errors import HostError
from mlplatform_stack.docker import answer
from mlplatform_stack.settings import StackSettings

METADATA_RULE = "sudo iptables -I DOCKER-USER -d 169.254.0.0/16 -j REJECT"
"""Command that closes link-local addresses to all containers. Packets of the host itself do not pass the chain."""

_PROBE = "import socket; socket.create_connection(('169.254.169.254', 80), 1); print('open')"

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def subnets() -> dict[str, list[Network]]:
    """Return the subnets of each Docker network, by its name."""
    ids = answer("docker", "network", "ls", "--quiet").split()
    listed = json.loads(answer("docker", "network", "inspect", *ids) or "[]") if ids else []
    return {
        network["Name"]: [ipaddress.ip_network(part["Subnet"]) for part in network["IPAM"]["Config"] or []]
        for network in listed
    }


def cluster_name(settings: StackSettings) -> str:
    """Return the name of the stack's network of jobs."""
    return f"{settings.stack_prefix}mlplatform_cluster"


def cluster_subnet(settings: StackSettings) -> Network:
    """Return the addresses of the stack's network of jobs."""
    return ipaddress.ip_network(f"{settings.cluster_network}.0/24")


def free_cluster_network() -> str:
    """Return a value for CLUSTER_NETWORK whose addresses overlap with no network of Docker.

    Raises:
        HostError: there is none.
    """
    taken = [subnet for found in subnets().values() for subnet in found]
    for number in range(80, 256):
        candidate = ipaddress.ip_network(f"10.213.{number}.0/24")
        if not any(candidate.overlaps(subnet) for subnet in taken):
            return f"10.213.{number}"
    raise HostError(
        "Docker's networks use all of 10.213.80.0 to 10.213.255.255: remove one with `docker network prune`."
    )


def bind_error(address: str, port: int) -> str:
    """Return why a port of this host cannot be used, or an empty string."""
    with socket.socket() as probe:
        # Like Docker's own bind: a port whose last connection has just closed counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            return error.strerror or str(error)
    return ""


def metadata_notes(settings: StackSettings) -> Iterator[str]:
    """Yield one sentence if a container can connect to the address; none elsewhere, as outside of clouds."""
    image = f"mlplatform-platform:{settings.mlplatform_version}"
    if answer("docker", "run", "--rm", "--pull=never", image, "python", "-c", _PROBE) == "open":
        yield (
            "Jobs and notebooks can reach 169.254.169.254, where this cloud hands out credentials of the host. "
            f"This closes it until the host restarts: {METADATA_RULE}"
        )
