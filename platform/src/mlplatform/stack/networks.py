"""Addresses of Docker's networks on this host, and of the stack's network that other hosts can join."""

from __future__ import annotations

import ipaddress
import json
import subprocess

from mlplatform.settings.stack import StackSettings

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def subnets() -> dict[str, list[Network]]:
    """Return the subnets of each Docker network, by its name."""
    ids = _docker("network", "ls", "--quiet").split()
    listed = json.loads(_docker("network", "inspect", *ids) or "[]") if ids else []
    return {
        network["Name"]: [ipaddress.ip_network(part["Subnet"]) for part in network["IPAM"]["Config"] or []]
        for network in listed
    }


def cluster_name(settings: StackSettings) -> str:
    """Return the name of the stack's network of jobs."""
    return f"{settings.prefix}mlplatform_cluster"


def cluster_subnet(settings: StackSettings) -> Network:
    """Return the addresses of the stack's network of jobs."""
    return ipaddress.ip_network(f"{settings.cluster_network}.0/24")


def _docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False).stdout
