"""Check that jobs cannot reach the metadata address of a cloud, which hands out credentials of the host."""

from __future__ import annotations

import enum
import ipaddress
import os
import shlex
import shutil
import subprocess

METADATA = ipaddress.IPv4Network("169.254.0.0/16")
"""Link-local addresses. Clouds serve the metadata and credentials of a machine at 169.254.169.254, or beside it."""

RULE = f"sudo iptables -I DOCKER-USER -d {METADATA} -j REJECT"
"""Command that closes the address to all containers. Packets of the host itself do not pass the chain."""

_SBIN = ("/usr/sbin", "/sbin", "/usr/local/sbin")

_LIST = ("-S", "DOCKER-USER")

_IGNORED = {"-m": "comment", "--comment": None, "--reject-with": None}
"""Options that do not narrow a rule; `None` for those with any value."""


class Metadata(enum.Enum):
    """State of the metadata address, as seen from a container."""

    CLOSED = enum.auto()
    OPEN = enum.auto()
    UNKNOWN = enum.auto()


def metadata() -> Metadata:
    """Return whether Docker's chain for the rules of users rejects packets to the metadata address."""
    # Debian keeps the program out of the PATH of ordinary users.
    program = shutil.which("iptables", path=os.pathsep.join([*os.get_exec_path(), *_SBIN]))
    if program is None:
        return Metadata.UNKNOWN
    listed = subprocess.run([program, *_LIST], capture_output=True, text=True, check=False)
    # Only root can list rules. Without the chain, Docker uses another firewall, or does not run.
    if listed.returncode:
        return Metadata.UNKNOWN
    return Metadata.CLOSED if rejects(listed.stdout) else Metadata.OPEN


def rejects(rules: str) -> bool:
    """Return whether rules, as `iptables -S` lists them, reject every packet to the metadata address."""
    for line in rules.splitlines():
        words = shlex.split(line)
        if words[:1] != ["-A"]:
            continue
        destination, target, narrowed = _parse(words[2:])
        if target in ("DROP", "REJECT") and not narrowed and METADATA.subnet_of(destination):
            return True
        # Accepted before a later rule could reject them; packets of connections that exist cannot open one.
        if target in ("RETURN", "ACCEPT") and METADATA.overlaps(destination) and "--ctstate" not in words:
            return False
    return False


def notes() -> list[str]:
    """Return one sentence unless the address is closed: the rule that closes it, or how to find out."""
    state = metadata()
    if state is Metadata.CLOSED:
        return []
    if state is Metadata.OPEN:
        return [
            f"Jobs and notebooks can reach {METADATA}, where clouds hand out credentials of the host. "
            f"This closes it until the host restarts: {RULE}"
        ]
    return [
        f"Whether jobs can reach {METADATA}, the metadata address of clouds, could not be checked, because only root "
        f"can list the firewall's rules. On a cloud, see `sudo iptables {' '.join(_LIST)}`; this closes it: {RULE}"
    ]


def _parse(words: list[str]) -> tuple[ipaddress.IPv4Network, str, bool]:
    """Return destination and target of a rule, and whether anything else limits it to some packets."""
    destination, target, narrowed = ipaddress.IPv4Network("0.0.0.0/0"), "", False
    options = iter(words)
    for option in options:
        value = next(options, "")
        if option == "-d":
            destination = ipaddress.IPv4Network(value)
        elif option == "-j":
            target = value
        elif _IGNORED.get(option, "") not in (None, value):
            narrowed = True
    return destination, target, narrowed
