"""This host as a joined one: its worker belongs to the stack of another host."""

from __future__ import annotations

import ipaddress
import socket
import subprocess
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from mlplatform.errors import HostError
from mlplatform.files import atomic
from mlplatform.settings.environment import shell_environment
from mlplatform.stack import env, image_archive, images, openssl, sizing
from mlplatform.stack.host import Host
from mlplatform.stack.hosts import IMAGES, SECRETS
from mlplatform.stack.invitation import request_join

START_TIMEOUT = 300
"""Seconds after which a worker that has not reached the stack counts as failed."""

FILE = "joined.env"
"""Settings of a joined host, in the checkout's root."""

_TORCH_INDEX = "TORCH_INDEX_URL"
"""Setting of the index from which a host with AMD GPUs builds Ray's image, unless the stack sends it."""

_HEADER = "# Written by `make join`. `.env.example` explains the sizes; after a change, run `make join` without a host."


def has_joined(root: Path) -> bool:
    """Return whether this checkout runs the worker of a joined host."""
    return (root / FILE).is_file()


def join(root: Path, host: Host, server: str, fingerprint: str, code: str, name: str) -> None:
    """Add this host's worker to the stack that issued an invitation.

    Args:
        root: folder of the checkout.
        host: hardware of this host.
        server: "address:port" of the invitation.
        fingerprint: SHA-256 of its certificate.
        code: one-time code.
        name: name for this host, unique within the stack.

    Raises:
        HostError: this checkout has a stack of its own, the address is unknown, or the invitation or the start failed.
    """
    _reject_own_stack(root)
    address = _resolve(server)
    private, public = openssl.wireguard_key()
    version = env.checkout_version(root)
    present = {image: images.layers_digest(image) for image in (f"mlplatform-{kind}:{version}" for kind in IMAGES)}
    request = {
        "name": name,
        "key": public,
        "version": version,
        "accelerator": host.accelerator,
        "torch_index": bool(shell_environment().get(_TORCH_INDEX)),
        "images": {image: found for image, found in present.items() if found},
    }

    def receive(reply: dict[str, Any], archive: BinaryIO) -> None:
        _load_images(archive)
        _write(root, host, version, name, private, address, reply)

    request_join(server, fingerprint, code, request, receive)
    _build_missing(root, version)
    start(root)


def start(root: Path) -> None:
    """Start the worker, and wait until it has reached the stack.

    Raises:
        HostError: it did not within the time limit.
    """
    up = ("up", "--detach", "--no-build")
    wait = ("--wait", "--wait-timeout", str(START_TIMEOUT))
    # The copies are not awaited: the first ones may take hours, and jobs can run meanwhile.
    commands = (compose_joined(root, *up, *wait, "ray-worker", "log-shipper"), compose_joined(root, *up))
    if any(subprocess.run(command, check=False).returncode for command in commands):
        raise HostError(
            f"The worker did not reach the stack within {START_TIMEOUT} s: `docker logs` of the containers "
            "joined-link and joined-worker tells why; the stack's firewall must accept UDP on its HUB_PORT."
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
    files = ["--file", str(root / "compose" / "joined" / "compose.yaml")]
    return ["docker", "compose", "--env-file", str(root / FILE), *files, *arguments]


def _reject_own_stack(root: Path) -> None:
    if has_joined(root):
        raise HostError("This host has joined already: run `make leave` first.")
    if (root / "secrets" / "postgres_password").exists():
        raise HostError(
            "This checkout has a stack of its own (secrets/postgres_password): run `make join` in another clone."
        )


def _resolve(server: str) -> str:
    """Return the IPv4 address of a server. The link cannot resolve a name: its resolver is at the stack's end."""
    name = server.rpartition(":")[0]
    try:
        return str(socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_DGRAM)[0][4][0])
    except (OSError, UnicodeError) as error:
        raise HostError(
            f"HOST={server} has no IPv4 address ({error}): set HOST= to the address and port of the stack's host."
        ) from error


def _load_images(archive: BinaryIO) -> None:
    """Pass the archive that follows the answer to Docker, if there is one."""
    first = archive.read(image_archive.CHUNK_BYTES)
    if first:
        rest = iter(partial(archive.read, image_archive.CHUNK_BYTES), b"")
        image_archive.load(chain([first], rest), "join again")


def _write(root: Path, host: Host, version: str, name: str, private: str, address: str, reply: dict[str, Any]) -> None:
    wrong = [image for image, expected in reply["images"].items() if images.layers_digest(image) != expected]
    if wrong:
        raise HostError(f"The images {', '.join(wrong)} differ from the stack's: run `docker image rm` and join again.")
    folder = root / "secrets"
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    for secret in SECRETS:
        _write_secret(folder / secret, reply["secrets"][secret])
    _write_secret(folder / "link_key", private)
    values = {choice.setting: choice.value for choice in sizing.choices_for_joined(host)}
    values |= {
        "MLPLATFORM_VERSION": version,
        "COMPOSE_PROFILES": "ray",
        "NODE_NAME": f"ray-worker-{name}",
        "CLUSTER_NETWORK": reply["network"],
        **_addresses(reply["addresses"]),
        "HUB_ENDPOINT": f"{address}:{reply['hub_port']}",
        "HUB_KEY": reply["hub_key"],
        **reply["settings"],
        **({_TORCH_INDEX: index} if (index := shell_environment().get(_TORCH_INDEX)) else {}),
    }
    lines = [f"{key}={value}" for key, value in values.items()]
    atomic.write(root / FILE, "\n".join([_HEADER, *lines, ""]))


def _addresses(block: str) -> dict[str, str]:
    """Return the settings of the containers' addresses, of which a host has eight."""
    own = ipaddress.ip_network(block)
    names = ("WORKER_ADDRESS", "SHIPPER_ADDRESS", "COPIES_ADDRESS", "LINK_ADDRESS", "GATEWAY_ADDRESS")
    return {"HOST_NETWORK": block, **{name: str(address) for name, address in zip(names, own.hosts(), strict=False)}}


def _write_secret(path: Path, text: str) -> None:
    # Readable for the containers' users, as all secrets; the folder's mode keeps other users out.
    atomic.write(path, text, 0o444)


def _build_missing(root: Path, version: str) -> None:
    """Build Ray's image here if the stack's is for other GPUs."""
    if images.is_present(f"mlplatform-ray:{version}"):
        return
    files = ["--env-file", str(root / FILE), "--file", str(root / "compose" / "compose.yaml")]
    if subprocess.run(["docker", "compose", *files, "--profile", "*", "build", "ray-head"], check=False).returncode:
        raise HostError("Ray's image could not be built; the reason is above. Then run `make leave` and join again.")
