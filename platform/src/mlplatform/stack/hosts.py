"""Hosts that join this one: invitations, the hub that connects them, and their removal."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from pathlib import Path
from typing import Any, BinaryIO

from mlplatform.errors import HostError
from mlplatform.files import atomic
from mlplatform.settings.stack import StackSettings
from mlplatform.stack import entrance, image_archive, images, networks
from mlplatform.stack.compose_command import compose
from mlplatform.stack.invitation import Invitation, UnreadyError

PROFILE = "hosts"

SECRETS = ("cluster_token", "log_shipper_token", "s3_jobs", "mlflow_job", "wandb_netrc", "comet_config")
"""Secrets of a worker, which a host that joins receives."""

IMAGES = ("platform", "link", "ray")

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,30}[a-z0-9])?")

_PUBLIC_KEY = re.compile(r"[A-Za-z0-9+/]{43}=")


def invite(root: Path) -> Invitation:
    """Start the hub if it is not running, and open an invitation; no other container is touched.

    Raises:
        HostError: the stack is not running or has other addresses, or the hub or the port cannot be used.
    """
    settings = StackSettings.load(root / ".env")
    _start_hub(root, settings)
    missing: list[str] = []

    def welcome(request: dict[str, Any]) -> dict[str, Any]:
        reply, needed = admit(root, settings, request)
        missing.extend(needed)
        return reply

    def send(request: dict[str, Any], out: BinaryIO) -> None:
        if missing:
            image_archive.save(missing, out)

    return Invitation(settings.hub_port, welcome, send)


def admit(root: Path, settings: StackSettings, request: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Register a host with the hub; return what it needs to know, and the images that it lacks.

    Raises:
        HostError: its name or version does not fit this stack.
        UnreadyError: it has to build an image, and lacks a setting for that.
    """
    name, key = str(request.get("name")), str(request.get("key"))
    if not _NAME.fullmatch(name):
        raise HostError(
            f"Invalid name {name!r}: use lower-case letters, digits and '-', beginning with a letter, 32 at most; set "
            "it with NAME=."
        )
    if not _PUBLIC_KEY.fullmatch(key):
        raise HostError(f"{key!r} is not a public key of WireGuard.")
    if request.get("version") != settings.version:
        raise HostError(
            f"Its checkout has version {request.get('version')}, the stack {settings.version}: check out the same one."
        )
    names = [f"mlplatform-{image}:{settings.version}" for image in IMAGES]
    digests = {image: images.layers_digest(image) for image in names}
    present = dict(request.get("images") or {})
    # cpu and cuda share one image; a host with AMD GPUs among others, or the reverse, builds its own.
    if (request.get("accelerator") == "rocm") != (settings.accelerator == "rocm"):
        image = f"mlplatform-ray:{settings.version}"
        digests.pop(image)
        if request.get("accelerator") == "rocm" and image not in present and request.get("torch_index") is False:
            raise UnreadyError(
                "it builds Ray's image, as this stack's is not for AMD GPUs: repeat `make join` with TORCH_INDEX_URL= "
                "set to an index with ROCm builds of torch. The code is still valid."
            )
    reply = json.loads(_hub(settings, "add", name, data=key))
    reply |= {
        "network": settings.cluster_network,
        "hub_port": settings.hub_port,
        "secrets": {secret: (root / "secrets" / secret).read_text() for secret in SECRETS},
        "settings": {
            "MLFLOW_ORIGIN": entrance.origin(settings, "mlflow"),
            "MLFLOW_PORT": str(settings.mlflow_port),
            "S3_ENDPOINT_URL": settings.s3_endpoint,
        },
        "images": digests,
    }
    return reply, [image for image, found in digests.items() if present.get(image) != found]


def joined(root: Path) -> dict[str, str]:
    """Return the addresses (CIDR) of each host that has joined, by its name.

    Raises:
        HostError: the hub is not running.
    """
    settings = StackSettings.load(root / ".env")
    hosts = json.loads(_hub(settings, "list", ""))
    return {name: host["addresses"] for name, host in sorted(hosts.items())}


def remove(root: Path, name: str) -> None:
    """Reject a host's traffic from now on, and free its address.

    Raises:
        HostError: no host of this name has joined, or the hub is not running.
    """
    _hub(StackSettings.load(root / ".env"), "remove", name)


def address_of_this_host() -> str:
    """Return the address from which this host reaches others, or an empty string without a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Nothing is sent: connecting a UDP socket only chooses the route. 192.0.2.0/24 is for documentation.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def _start_hub(root: Path, settings: StackSettings) -> None:
    name, wanted = networks.cluster_name(settings), networks.cluster_subnet(settings)
    found = networks.subnets().get(name)
    if found is None:
        raise HostError("The stack is not running, so no host can join it: start it with `make up`.")
    if found != [wanted]:
        raise HostError(
            f"The stack's network {name} was created with other addresses ({', '.join(map(str, found))}) than "
            f"CLUSTER_NETWORK={settings.cluster_network}: run `make down up` once, then invite again."
        )
    _enable_profile(root / ".env")
    command = compose(root, "up", "--detach", "--no-build", "--no-deps", "--wait", "hub", "copies")
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise HostError(f"The hub for other hosts did not start: {result.stderr.strip()}")


def _enable_profile(env_file: Path) -> None:
    """Add the hub's profile, so that `make up` starts it from now on."""
    text = env_file.read_text()
    line = re.search(r"^COMPOSE_PROFILES=(.*)$", text, re.M)
    profiles = [profile for profile in line[1].split(",") if profile] if line else []
    if PROFILE in profiles:
        return
    new = f"COMPOSE_PROFILES={','.join([*profiles, PROFILE])}"
    atomic.write(env_file, text.replace(line[0], new) if line else f"{text}{new}\n")


def _hub(settings: StackSettings, command: str, name: str, data: str = "") -> str:
    container = f"{settings.prefix}hub"
    program = ("python", "-m", "mlplatform.services.hub", command, settings.cluster_network, name)
    result = subprocess.run(
        ["docker", "exec", "--interactive", container, *program],
        input=data,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode == 0:
        return result.stdout
    if re.search(r"No such container|container \S+ is not running", result.stderr):
        raise HostError(
            f"The container {container}, which connects hosts, is not running; `make host-token` starts it and invites "
            "a host."
        )
    raise HostError(result.stderr.strip() or f"The hub did not answer ({container}).")
