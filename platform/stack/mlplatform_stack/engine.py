"""Checks of the Docker engine: that it is Docker, its versions, and what it cannot do for this checkout.

As a program, which `make build` runs: exit with the problems of an engine that cannot build the images.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

from mlplatform.settings.environment import environment
from mlplatform_stack.docker import answer
from mlplatform_stack.settings import StackSettings

# `start_interval` of health checks.
MINIMUM_ENGINE = (25, 0)

# `extends` below `include`, and `include.env_file`: the loader of 2.24.7 still rejects them.
MINIMUM_COMPOSE = (2, 25)

_CHOSEN = ("DOCKER_HOST", "DOCKER_CONTEXT")
"""Variables with which a person chooses an engine."""

_LABEL = "container_file_t"
"""SELinux' type of files that containers may read."""


def problems() -> Iterator[str]:
    """Yield why Docker is missing, unusable or too old; each sentence names the fix."""
    if not shutil.which("docker"):
        yield "Docker is not installed: install Docker Engine 25 or later with its Compose plugin."
        return
    version = subprocess.run(["docker", "version"], capture_output=True, text=True, check=False)
    if "podman" in version.stdout.lower():
        yield "`docker` is Podman here, on which the stack does not run: install Docker Engine 25 or later."
    elif version.returncode:
        chosen = [f"{name}={value}" for name in _CHOSEN if (value := environment().get(name))]
        start = "start it with `sudo systemctl start docker`, or add yourself to the group `docker` and log in again."
        fix = f"this shell exports {' and '.join(chosen)}; start that engine, or unset it." if chosen else start
        yield f"Docker is not running, or you may not use it ({version.stderr.strip().splitlines()[-1]}): {fix}"
    else:
        yield from _old_versions()


def restrictions(root: Path, settings: StackSettings, options: Collection[str], dev: Path) -> Iterator[str]:
    """Yield what an engine with these `SecurityOptions` denies until something is changed."""
    folders = [
        root / "docker",
        root / "secrets",
        *([Path(settings.backup_to)] if settings.backup_to[:1] == "/" else []),
    ]
    closed = " ".join(str(folder) for folder in folders if "name=selinux" in options and _label(folder) != _LABEL)
    if closed:
        yield f"SELinux denies containers access to {closed}: run `sudo chcon -R -t {_LABEL} {closed}`."
    kfd = dev / "kfd"
    if (
        "name=rootless" in options
        and settings.accelerator == "rocm"
        and kfd.exists()
        and not kfd.stat().st_mode & 0o006
    ):
        yield (
            f"Docker runs without root, and its containers lack the group that may open {kfd}: run "
            f"`sudo chmod o+rw {kfd} {dev}/dri/renderD*` after each boot, or use Docker with root."
        )


def _old_versions() -> Iterator[str]:
    engine = answer("docker", "version", "--format", "{{.Server.Version}}")
    if _version(engine) < MINIMUM_ENGINE:
        yield f"Docker Engine {engine} is too old: 25.0 or later is needed."
    compose = answer("docker", "compose", "version", "--short")
    if not compose:
        yield "Docker has no Compose plugin: install `docker-compose-plugin` (Debian: `docker-compose`)."
    elif _version(compose) < MINIMUM_COMPOSE:
        yield f"Docker Compose {compose} is too old: 2.25 or later is needed."


def _version(text: str) -> tuple[int, int]:
    """Return the first two numbers; builds between releases, `dev` or `0.0.0-2026`, count as new enough."""
    found = re.search(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found and found[0] != "0.0" else (10**6, 0)


def _label(path: str | Path) -> str:
    """Return the type in a path's SELinux label; empty if it has none."""
    try:
        return os.getxattr(path, "security.selinux").decode().split(":")[2]
    except (OSError, IndexError):
        return ""


if __name__ == "__main__":
    sys.exit("\n".join(problems()) or None)
