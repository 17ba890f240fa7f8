"""Hub that connects workers on other hosts to the network of jobs, over WireGuard.

    python -m mlplatform_stack.hosts.hub run NETWORK           set up the interface, resolve names, until stopped
    python -m mlplatform_stack.hosts.hub add NETWORK NAME      register a host; print its key and addresses as JSON
    python -m mlplatform_stack.hosts.hub remove NETWORK NAME   forget a host
    python -m mlplatform_stack.hosts.hub list NETWORK          print all hosts as JSON

NETWORK is the first three numbers of the network's addresses. Those of a host belong to the network of jobs; the hub
answers ARP requests for them and forwards, so that no other container needs a route. Requires NET_ADMIN, and the
sysctls `ip_forward` and `proxy_arp`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from mlplatform.errors import HostError, PlatformError
from mlplatform.files import atomic
from mlplatform_stack.hosts import wireguard

FOLDER = Path("/hub")

_BLOCK = 8
"""Addresses of a host: of its containers, and of the gateway of its Docker network."""

_SESSION_SECONDS = 180
"""WireGuard's limit after which a session that was not renewed is rejected."""


class Hub:
    """Hosts that have joined, in `folder`, and their peers of the interface.

    Args:
        folder: keeps the private key and the hosts.
        network: first three numbers of the addresses.
    """

    def __init__(self, folder: Path, network: str) -> None:
        self._key = folder / "private_key"
        self._file = folder / "hosts.json"
        self._network = network

    @property
    def address(self) -> str:
        """Address of the hub on the link, at which it resolves names."""
        return f"{self._network}.{wireguard.HUB}"

    def hosts(self) -> dict[str, dict[str, str]]:
        """Return the public key and the addresses (CIDR) of each host, by its name."""
        return dict(json.loads(self._file.read_text())) if self._file.exists() else {}

    def public_key(self) -> str:
        """Return the key by which hosts recognize the hub; creates it at the first call."""
        if not self._key.exists():
            atomic.write(self._key, wireguard.run("wg", "genkey"), 0o600)
        return wireguard.run("wg", "pubkey", data=self._key.read_text()).strip()

    def register(self, name: str, key: str) -> dict[str, str]:
        """Record a host; one that joins again keeps its addresses and replaces its key.

        Raises:
            HostError: no addresses are left.
        """
        hosts = self.hosts()
        taken = {host["addresses"] for host in hosts.values()}
        blocks = (f"{self._network}.{first}/29" for first in range(wireguard.HUB + _BLOCK, 256, _BLOCK))
        free = next((block for block in blocks if block not in taken), None)
        addresses = hosts[name]["addresses"] if name in hosts else free
        if addresses is None:
            raise HostError(f"{len(taken)} hosts have joined, and no more can: remove one with `make remove-host`.")
        hosts[name] = {"key": key, "addresses": addresses}
        atomic.write(self._file, json.dumps(hosts, indent=2))
        return hosts[name]

    def forget(self, name: str) -> dict[str, str]:
        """Remove a host's record and return it.

        Raises:
            HostError: no host of this name has joined.
        """
        hosts = self.hosts()
        if name not in hosts:
            raise HostError(f"No host {name!r} has joined; those that have: {', '.join(sorted(hosts)) or 'none'}.")
        host = hosts.pop(name)
        atomic.write(self._file, json.dumps(hosts, indent=2))
        return host

    # --- The interface ---

    def set_up(self) -> None:
        """Create the interface with all hosts."""
        wireguard.create()
        self.public_key()
        wireguard.run(
            "wg", "set", wireguard.INTERFACE, "private-key", str(self._key), "listen-port", str(wireguard.PORT)
        )
        wireguard.run("ip", "address", "replace", f"{self.address}/32", "dev", wireguard.INTERFACE)
        wireguard.run("ip", "link", "set", wireguard.INTERFACE, "up")
        wireguard.answer_for_others()
        for host in self.hosts().values():
            self.connect(host)

    def connect(self, host: dict[str, str]) -> None:
        """Accept a host's packets, with its addresses only."""
        wireguard.run("wg", "set", wireguard.INTERFACE, "peer", host["key"], "allowed-ips", host["addresses"])
        wireguard.run("ip", "route", "replace", host["addresses"], "dev", wireguard.INTERFACE)

    def is_connected(self, host: dict[str, str]) -> bool:
        """Return whether a host has renewed its session, which it does every two minutes."""
        listed = wireguard.run("wg", "show", wireguard.INTERFACE, "latest-handshakes")
        renewed = {key: int(moment) for key, moment in map(str.split, listed.splitlines())}
        return time.time() - renewed.get(host["key"], 0) < _SESSION_SECONDS

    def disconnect(self, host: dict[str, str]) -> None:
        """Reject a host's packets from now on."""
        wireguard.run("wg", "set", wireguard.INTERFACE, "peer", host["key"], "remove")
        wireguard.run("ip", "route", "delete", host["addresses"], "dev", wireguard.INTERFACE)


def run(hub: Hub) -> None:
    """Serve until the interface's process or the name server ends.

    Raises:
        HostError: one has ended.
    """
    hub.set_up()
    options = [
        *("--keep-in-foreground", "--no-hosts", "--cache-size=0", "--pid-file=", "--log-facility=-"),
        # No capability to change them.
        *("--user=root", "--group="),
        # Docker's resolver has the containers' names.
        *("--no-resolv", "--server=127.0.0.11"),
        *(f"--listen-address={hub.address}", "--bind-interfaces"),
    ]
    names = subprocess.Popen(["dnsmasq", *options])
    ended, _ = os.wait()
    raise HostError(f"The {'name server' if ended == names.pid else 'interface'} has ended.")


def add(hub: Hub, name: str) -> dict[str, Any]:
    """Register a host with a new key, and return its addresses with what it needs to connect.

    Raises:
        HostError: another host of this name is connected.
    """
    old = hub.hosts().get(name)
    if old and hub.is_connected(old):
        raise HostError(
            f"A host named {name} is connected: set another name with NAME=, or run `make remove-host NAME={name}` "
            "first."
        )
    key = wireguard.run("wg", "genkey")
    host = hub.register(name, wireguard.run("wg", "pubkey", data=key).strip())
    if old:
        hub.disconnect(old)
    hub.connect(host)
    return {"addresses": host["addresses"], "key": key, "hub_key": hub.public_key()}


def main(command: str, network: str, name: str = "") -> None:
    """Run one command."""
    hub = Hub(FOLDER, network)
    if command == "run":
        run(hub)
    elif command == "add":
        print(json.dumps(add(hub, name)))
    elif command == "remove":
        hub.disconnect(hub.forget(name))
    else:
        print(json.dumps(hub.hosts()))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except PlatformError as error:
        sys.exit(str(error))
