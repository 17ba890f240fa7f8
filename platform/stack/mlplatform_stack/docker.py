"""Commands of Docker, and of Docker Compose on the shipped files."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlplatform.errors import HostError


def compose(root: Path, *arguments: str, env: str = ".env", file: str = "compose/compose.yaml") -> list[str]:
    """Return the `docker compose` command on a checkout's files, as in the Makefile.

    What the settings lack has its default, which `.env.example` has from the fields.
    """
    files = (str(root / ".env.example"), str(root / env))
    options = [word for path in files for word in ("--env-file", path)]
    return ["docker", "compose", *options, "--file", str(root / file), *arguments]


def output(*command: str, **options: Any) -> str:
    """Run a command and return what it prints.

    Args:
        command: words of the command.
        options: of `subprocess.run`, such as `input`.

    Raises:
        HostError: it failed; the message has the last five lines that it printed.
    """
    chosen = {"stdout": subprocess.PIPE, **({} if "input" in options else {"stdin": subprocess.DEVNULL}), **options}
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, **chosen)
    if done.returncode:
        # Without the options that all calls of Compose have.
        words = [*command[:2], *command[8:]] if command[2:3] == ("--env-file",) else command
        printed = f"{done.stdout or ''}\n{done.stderr}".strip().splitlines()[-5:]
        raise HostError(f"`{' '.join(words)}` failed: {' / '.join(printed) or 'no reason given'}")
    return done.stdout or ""


def answer(*command: str, timeout_s: float | None = None) -> str:
    """Return what a command prints, without the spaces around it; empty if it fails or is not installed."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=timeout_s
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip()


def running(root: Path) -> set[str]:
    """Return the names of the services that are running.

    Raises:
        HostError: Compose rejects the files or the settings.
    """
    return set(output(*compose(root, "--profile", "*", "ps", "--services")).split())


def containers(prefix: str) -> list[dict[str, Any]]:
    """Return Docker's description of each container of the stack with this prefix."""
    project = f"label=com.docker.compose.project={prefix}mlplatform"
    ids = output("docker", "ps", "--all", "--quiet", "--filter", project).split()
    found: list[dict[str, Any]] = json.loads(output("docker", "inspect", *ids)) if ids else []
    return found


def service(container: dict[str, Any]) -> str:
    """Return the name of a container's service."""
    return str(container["Config"]["Labels"]["com.docker.compose.service"])


def failed(root: Path, timeout_s: float | None = None) -> Iterator[tuple[str, str, str]]:
    """Yield service, name and state of each container of the stack that failed, restarts or is unhealthy."""
    listing = answer(*compose(root, "--profile", "*", "ps", "--all", "--format", "json"), timeout_s=timeout_s)
    for container in map(json.loads, listing.splitlines()):
        state, code = container["State"], container["ExitCode"]
        if container.get("Health") == "unhealthy":
            yield container["Service"], container["Name"], "is unhealthy"
        elif state == "restarting" or (state in ("created", "exited", "dead") and code):
            yield container["Service"], container["Name"], f"exited with {code}"
