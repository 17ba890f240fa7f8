"""This host as a joined one: its worker belongs to the stack of another host."""

from __future__ import annotations

import ipaddress
import json
import socket
import subprocess
from pathlib import Path
from typing import Any

from mlplatform.errors import HostError
from mlplatform.files import atomic
from mlplatform_stack import env, generated, images, sizing
from mlplatform_stack.docker import compose
from mlplatform_stack.host import Host
from mlplatform_stack.hosts.verbs import SECRETS

START_TIMEOUT = 300
"""Seconds after which a worker that has not reached the stack counts as failed."""

FILE = "joined.env"
"""Settings of a joined host, in the checkout's root."""

_BUILT_AS = {"platform": "storage-init", "ray": "ray-head", "link": "hub"}
"""Images of a joined host, and services of the stack whose builds make them, in their order."""

_HEADER = "# Written by `make join`. `.env.example` explains the sizes; after a change, run `make join`."


def has_joined(root: Path) -> bool:
    """Return whether this checkout runs the worker of a joined host."""
    return (root / FILE).is_file()


def join(root: Path, host: Host, file: Path) -> str:
    """Add this host's worker to the stack that wrote a file for it; return its name, and remove the file.

    Args:
        file: of `make host-token`.

    Raises:
        HostError: this checkout has a stack of its own or another version, the stack's address is unknown, or the
            worker did not start.
    """
    if has_joined(root):
        raise HostError("This host has joined already: run `make leave` first.")
    if (root / "secrets" / "postgres_password").exists():
        raise HostError(
            "This checkout has a stack of its own (secrets/postgres_password): run `make join` in another clone."
        )
    try:
        content: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise HostError(f"{file} cannot be read ({error}): copy it from the stack's host again.") from error
    if content["version"] != (version := env.checkout_version(root)):
        raise HostError(
            f"{file} is for version {content['version']}, and this checkout has {version}: check out the same one."
        )
    _write(root, host, content)
    file.unlink()
    start(root)
    return str(content["name"])


def start(root: Path) -> None:
    """Build missing images, start the worker, and wait until it has reached the stack.

    Raises:
        HostError: an image cannot be built, or the worker did not reach it within the time limit.
    """
    _build_missing(root)
    up = ("up", "--detach", "--no-build")
    wait = ("--wait", "--wait-timeout", str(START_TIMEOUT))
    # The copies are not awaited: the first ones may take hours, and jobs can run meanwhile.
    commands = (compose_joined(root, *up, *wait, "ray-worker", "log-shipper"), compose_joined(root, *up))
    if any(subprocess.run(command, check=False).returncode for command in commands):
        raise HostError(
            f"The worker did not reach the stack within {START_TIMEOUT} s: `docker logs` of the containers "
            "mlplatform-joined-link-1 and mlplatform-joined-ray-worker-1 tells why; the stack's firewall must accept "
            "UDP on its HUB_PORT."
        )


def leave(root: Path) -> None:
    """Stop this host's worker, which first drains, and remove its containers, volumes and secrets.

    Raises:
        HostError: this host has not joined a stack.
    """
    if not has_joined(root):
        raise HostError("This host has not joined a stack.")
    command = compose_joined(root, "down", "--volumes", "--remove-orphans")
    if subprocess.run(command, check=False).returncode:
        raise HostError("`docker compose down` failed; its reason is above.")
    for secret in (*SECRETS, "link_key"):
        (root / "secrets" / secret).unlink(missing_ok=True)
    (root / FILE).unlink()


def compose_joined(root: Path, *arguments: str) -> list[str]:
    """Return the `docker compose` command on the files of a joined host."""
    return compose(root, *arguments, env=FILE, file="compose/joined/compose.yaml")


def _resolve(server: str) -> str:
    """Return a server with its IPv4 address. The link cannot resolve a name: its resolver is at the stack's end."""
    name, _, port = server.rpartition(":")
    try:
        return f"{socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_DGRAM)[0][4][0]}:{port}"
    except (OSError, UnicodeError) as error:
        raise HostError(
            f"The stack's address {name} has no IPv4 address ({error}): run `make host-token` with ADDRESS= again."
        ) from error


def _write(root: Path, host: Host, content: dict[str, Any]) -> None:
    values = {choice.setting: choice.value for choice in (*sizing.choices_for_joined(host), *env.mirrors())}
    values |= {
        "MLPLATFORM_VERSION": content["version"],
        "COMPOSE_PROFILES": "ray",
        "NODE_NAME": f"ray-worker-{content['name']}",
        "CLUSTER_NETWORK": content["network"],
        **_addresses(content["addresses"]),
        "HUB_ENDPOINT": _resolve(content["hub"]),
        "HUB_KEY": content["hub_key"],
        **content["settings"],
    }
    folder = root / "secrets"
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    for secret, text in {**content["secrets"], "link_key": content["key"]}.items():
        # Readable for the containers' users, as all secrets; the folder's mode keeps other users out.
        atomic.write(folder / secret, text, 0o444)
    lines = [f"{key}={value}" for key, value in values.items()]
    atomic.write(root / FILE, "\n".join([_HEADER, *lines, ""]))


def _addresses(block: str) -> dict[str, str]:
    """Return the settings of the containers' addresses, of which a host has eight."""
    own = ipaddress.ip_network(block)
    names = ("WORKER_ADDRESS", "SHIPPER_ADDRESS", "COPIES_ADDRESS", "LINK_ADDRESS", "GATEWAY_ADDRESS")
    return {"HOST_NETWORK": block, **{name: str(address) for name, address in zip(names, own.hosts(), strict=False)}}


def _build_missing(root: Path) -> None:
    """Build the images that this host lacks, as `make build` does; with `make join BUNDLE=` it has them."""
    generated.write_missing(root, FILE)
    version = env.checkout_version(root)
    for kind, service in _BUILT_AS.items():
        command = compose(root, "--profile", "*", "build", service, env=FILE)
        if not images.is_present(f"mlplatform-{kind}:{version}") and subprocess.run(command, check=False).returncode:
            raise HostError(f"The image of {service} could not be built; the reason is above. Then run `make join`.")
