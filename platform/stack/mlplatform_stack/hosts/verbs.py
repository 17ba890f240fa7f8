"""Hosts that join this one: the file with which each does, the hub that connects them, and their removal."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from pathlib import Path

from mlplatform.errors import HostError
from mlplatform.files import atomic
from mlplatform_stack import entrance, env_file, networks
from mlplatform_stack.docker import compose, output
from mlplatform_stack.settings import StackSettings

PROFILE = "hosts"

SECRETS = ("cluster_token", "log_shipper_token", "s3_jobs", "mlflow_job", "wandb_netrc", "comet_config")
"""Secrets of a worker, which a host that joins receives."""

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,30}[a-z0-9])?")


def invite(root: Path, name: str, address: str) -> Path:
    """Register a host with the hub, and write the file with which it joins; no other container is touched.

    The file has the key of the link and the secrets of a worker. A host that is not connected gets a new key.

    Args:
        name: name of the host, unique within the stack.
        address: address or name at which it reaches this host.

    Raises:
        HostError: the name is invalid, or the stack is not running or has other addresses, or the hub does not start.
    """
    if not _NAME.fullmatch(name):
        raise HostError(
            f"Invalid name {name!r}: use lower-case letters, digits and '-', beginning with a letter, 32 at most; set "
            "it with NAME=."
        )
    settings = StackSettings.load(root / ".env")
    _start_hub(root, settings)
    content = {
        **json.loads(_hub(root, settings, "add", name)),
        "name": name,
        "version": settings.mlplatform_version,
        "network": settings.cluster_network,
        "hub": f"{address}:{settings.hub_port}",
        "secrets": {secret: (root / "secrets" / secret).read_text() for secret in SECRETS},
        "settings": {
            "MLFLOW_ORIGIN": entrance.origin(settings, "mlflow"),
            "MLFLOW_PORT": str(settings.mlflow_port),
            "S3_ENDPOINT_URL": settings.s3_endpoint_url,
        },
    }
    target = root / f"join-{name}.json"
    atomic.write(target, json.dumps(content, indent=2), 0o600)
    return target


def joined(root: Path) -> dict[str, str]:
    """Return the addresses (CIDR) of each host that has joined, by its name.

    Raises:
        HostError: the hub is not running.
    """
    settings = StackSettings.load(root / ".env")
    hosts = json.loads(_hub(root, settings, "list", ""))
    return {name: host["addresses"] for name, host in sorted(hosts.items())}


def remove(root: Path, name: str) -> None:
    """Reject a host's traffic from now on, and free its address.

    Raises:
        HostError: no host of this name has joined, or the hub is not running.
    """
    _hub(root, StackSettings.load(root / ".env"), "remove", name)


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
    # So that `make up` starts it from now on.
    profiles = dict.fromkeys([*filter(None, settings.compose_profiles.split(",")), PROFILE])
    env_file.change(root / ".env", {"COMPOSE_PROFILES": ",".join(profiles)})
    output(*compose(root, "up", "--detach", "--no-build", "--no-deps", "--wait", "hub", "copies"))


def _hub(root: Path, settings: StackSettings, command: str, name: str) -> str:
    program = ("python", "-m", "mlplatform_stack.hosts.hub", command, settings.cluster_network, name)
    words = compose(root, "--profile", "*", "exec", "--no-TTY", "hub", *program)
    result = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return result.stdout
    if re.search(r'service "hub" is not running', result.stderr):
        raise HostError(
            "The service hub, which connects hosts, is not running; `make host-token` starts it and invites a host."
        )
    raise HostError(result.stderr.strip() or "The service hub did not answer.")
