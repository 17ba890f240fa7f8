"""The stack on this host: its `.env` and secrets, and the way it is started and shown."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from mlplatform.errors import HostError
from mlplatform.settings.environment import environment
from mlplatform.settings.stack import StackSettings
from mlplatform.stack.pages import only_variables

START_TIMEOUT = 300
"""Seconds until services that are not healthy are reported as failed."""


def compose(root: Path, *arguments: str) -> list[str]:
    """The `docker compose` command on the shipped files, as the Makefile has it."""
    files = ["--env-file", str(root / ".env"), "--file", str(root / "compose" / "compose.yaml")]
    return ["docker", "compose", *files, *arguments]


def up(root: Path, only: str | None = None) -> None:
    """Start the stack, or the half of it that `only` names, and wait until every service is healthy.

    Raises:
        SettingsError: `only` is unknown.
        HostError: a service did not become healthy.
    """
    variables = only_variables(StackSettings.load(root / ".env"), only)
    make_food11_volume(root)
    command = compose(root, "up", "--detach", "--no-build", "--remove-orphans", "--wait", "--wait-timeout")
    result = subprocess.run([*command, str(START_TIMEOUT)], env={**environment(), **variables}, check=False)
    if result.returncode:
        raise HostError(
            f"The stack is not healthy after {START_TIMEOUT} s or less: `make status` shows each container's state "
            f"and `make logs` its last lines.{_last_words(root)}"
        )


def _last_words(root: Path) -> str:
    """The last lines of each container that ended with an error or is not healthy."""
    listing = subprocess.run(
        compose(root, "--profile", "*", "ps", "--all", "--format", "json"), capture_output=True, text=True, check=False
    )
    parts = []
    for container in map(json.loads, listing.stdout.splitlines()):
        if container["Health"] == "unhealthy":
            state = "is unhealthy"
        elif container["State"] in ("exited", "restarting", "dead") and container["ExitCode"]:
            state = f"ended with {container['ExitCode']}"
        else:
            continue
        logs = subprocess.run(
            ["docker", "logs", "--tail", "5", container["Name"]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        parts.append(f"\n{container['Name']} {state}:\n{logs.stdout.strip()}")
    return "".join(parts)


def make_food11_volume(root: Path) -> None:
    """External to Compose, so that no `down --volumes` takes the data set."""
    name = StackSettings.load(root / ".env").food11_volume
    subprocess.run(["docker", "volume", "create", name], check=True, stdout=subprocess.DEVNULL)


def fill_food11(root: Path, source: str, force: bool) -> int:
    """Unpack an archive into the volume, in a container that says itself what it did; returns its exit status.

    Args:
        root: of the checkout.
        source: address, or a path on this host, which the container sees read-only; not needed for a volume that is
            filled.
        force: replace what the volume holds.
    """
    make_food11_volume(root)
    command = compose(root, "run", "--rm")
    if (archive := Path(source).expanduser().absolute()).is_file():
        source = f"/archive/{archive.name}"
        command += ["--volume", f"{archive}:{source}:ro"]
    command += ["food11-data", *([source] if source else []), *(["--force"] if force else [])]
    return subprocess.run(command, check=False).returncode


def running(root: Path) -> set[str]:
    """Names of the services that run now."""
    command = compose(root, "--profile", "*", "ps", "--services")
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise HostError(f"`docker compose ps` failed: {result.stderr.strip()}")
    return set(result.stdout.split())
