"""Hub that connects workers on other hosts to the network of jobs, over WireGuard.

    python -m mlplatform.services.hub run NETWORK           set up the interface, resolve names, until stopped
    python -m mlplatform.services.hub add NETWORK NAME      register a host; print its key and addresses as JSON
    python -m mlplatform.services.hub remove NETWORK NAME   forget a host
    python -m mlplatform.services.hub list NETWORK          print all hosts as JSON

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
from mlplatform.services import wireguard

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
        return _read_json(self._file)

    def public_key(self) -> str:
        """Return the key by which hosts recognize the hub; creates it at the first call."""
        if not self._key.exists():
            with atomic.new_file(self._key) as draft:
                draft.touch(mode=0o600)
                draft.write_text(wireguard.run("wg", "genkey"))
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
        _write_json(self._file, hosts)
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
        _write_json(self._file, hosts)
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


def run(hub: Hub) -> int:
    """Serve until the interface's process or the name server ends."""
    hub.set_up()
    names = subprocess.Popen(
        [
            "dnsmasq",
            "--keep-in-foreground",
            # No capability to change them.
            "--user=root",
            "--group=",
            "--no-resolv",
            "--no-hosts",
            # Docker's resolver has the containers' names.
            "--server=127.0.0.11",
            "--cache-size=0",
            f"--listen-address={hub.address}",
            "--bind-interfaces",
            "--pid-file=",
            "--log-facility=-",
        ]
    )
    ended, _ = os.wait()
    print(f"The {'name server' if ended == names.pid else 'interface'} has ended.", file=sys.stderr)
    return 1


def _read_json(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text())) if file.exists() else {}


def _write_json(file: Path, content: dict[str, Any]) -> None:
    with atomic.new_file(file) as draft:
        draft.write_text(json.dumps(content, indent=2))


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


def main(arguments: list[str]) -> int:
    """Run one command; errors are one sentence on standard error."""
    command, network, *names = arguments
    hub, name = Hub(FOLDER, network), "".join(names)
    try:
        if command == "run":
            return run(hub)
        if command == "add":
            print(json.dumps(add(hub, name)))
        elif command == "remove":
            hub.disconnect(hub.forget(name))
        else:
            print(json.dumps(hub.hosts()))
    except PlatformError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
