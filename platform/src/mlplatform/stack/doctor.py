"""Checks of the host before the stack starts. Each problem names its fix; one error lists them all."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from mlplatform.errors import HostError
from mlplatform.settings.stack import LOOPBACK, PROXY, StackSettings
from mlplatform.stack import compose as stack_compose
from mlplatform.stack import firewall, images, networks, notebooks, secrets_folder, services, sizing
from mlplatform.stack.host import this_host
from mlplatform.stack.pages import pages

# `start_interval` of health checks needs Engine 25, `include` of several files Compose 2.23.
MINIMUM_ENGINE = (25, 0)

MINIMUM_COMPOSE = (2, 23)

_GB = 10**9


def check_host(root: Path, only: str | None = None) -> list[str]:
    """Check that the stack can start on this host, and that its settings fit it.

    Args:
        root: folder of the checkout.
        only: half of the stack to start; empty for all of it.

    Returns:
        One sentence per setting that no longer fits this host, or rule that its firewall lacks, without which the stack
        can start.

    Raises:
        HostError: it cannot start; one line per problem, each with its fix.
        SettingsError: `.env` is missing or has an invalid value.
    """
    settings = StackSettings.load(root / ".env")
    profiles = services.profiles_of(settings, only)
    problems = [*_docker_problems()]
    if not problems:
        engine = json.loads(_output("docker", "info", "--format", "{{json .}}"))
        problems += [
            *_accelerator_problems(settings, engine),
            *_disk_problems(Path(engine["DockerRootDir"]), settings.disk_needed),
            *_image_problems(settings, profiles),
            *_port_problems(settings, profiles, running := stack_compose.running(root)),
            *_notebook_problems(root, profiles, running),
            *_network_problems(settings, networks.subnets()),
        ]
    problems += _account_problems(root, settings)
    if problems:
        raise HostError("\n".join(problems))
    return [*sizing.misfits(settings, this_host()), *firewall.notes()]


def _docker_problems() -> Iterator[str]:
    if not shutil.which("docker"):
        yield "Docker is not installed: install Docker Engine 25 or later with its Compose plugin."
        return
    result = subprocess.run(
        ["docker", "version", "--format", "{{.Server.Version}}"], capture_output=True, text=True, check=False
    )
    if result.returncode:
        yield (
            f"Docker is not running, or you may not use it ({result.stderr.strip().splitlines()[-1]}): start it with "
            "`sudo systemctl start docker`, or add yourself to the group `docker` and log in again."
        )
        return
    if _version(result.stdout) < MINIMUM_ENGINE:
        yield f"Docker Engine {result.stdout.strip()} is too old: 25.0 or later is needed."
    compose = _output("docker", "compose", "version", "--short")
    if not compose:
        yield "Docker has no Compose plugin: install `docker-compose-plugin` (Debian: `docker-compose`)."
    elif _version(compose) < MINIMUM_COMPOSE:
        yield f"Docker Compose {compose.strip()} is too old: 2.23 or later is needed."


def _accelerator_problems(settings: StackSettings, engine: dict[str, object]) -> Iterator[str]:
    if settings.accelerator == "cuda" and "nvidia" not in dict(engine.get("Runtimes") or {}):  # type: ignore[call-overload]
        yield (
            "ACCELERATOR=cuda, but Docker has no NVIDIA runtime: install the NVIDIA Container Toolkit, run "
            "`sudo nvidia-ctk runtime configure --runtime=docker` and restart Docker, or set ACCELERATOR=cpu in .env."
        )
    if settings.accelerator == "rocm" and not Path("/dev/kfd").exists():
        yield (
            "ACCELERATOR=rocm, but this host has no /dev/kfd: install AMD's kernel driver (amdgpu-dkms) and reboot, "
            "or set ACCELERATOR=cpu in .env."
        )


def _disk_problems(docker_root: Path, needed: int) -> Iterator[str]:
    # Only root can read Docker's folder; its nearest visible parent is nearly always on the same disk.
    visible = next(folder for folder in (docker_root, *docker_root.parents) if folder.exists())
    free = shutil.disk_usage(visible).free / _GB
    if free < needed:
        yield (
            f"Docker's disk at {docker_root} has {free:.0f} GB free, less than DISK_NEEDED_GB={needed}: "
            "free some space (`docker system prune` removes unused data), or lower the setting in .env."
        )


def _image_problems(settings: StackSettings, profiles: list[str]) -> Iterator[str]:
    for image in images.missing_builds(settings, profiles):
        yield f"The image {image} is not built: run `make build`."


def _account_problems(root: Path, settings: StackSettings) -> Iterator[str]:
    for name in secrets_folder.without_account(root / "secrets", settings):
        yield (
            f"secrets/{name} has no account for S3_ENDPOINT_URL={settings.s3_endpoint}: write aws_access_key_id and "
            "aws_secret_access_key below a line [default] into it."
        )


def _port_problems(settings: StackSettings, profiles: list[str], running: set[str]) -> Iterator[str]:
    for page in pages(settings):
        if page.service in running or (page.profile and page.profile not in profiles):
            continue
        if reason := networks.bind_error(LOOPBACK, page.port):
            yield (
                f"Port {page.port} for {page.title} cannot be used ({reason}): stop the process that "
                f"uses it, or set {page.setting} in .env to a free port."
            )
    if PROXY in profiles and PROXY not in running:
        yield from _entrance_problems(settings)


def _notebook_problems(root: Path, profiles: list[str], running: set[str]) -> Iterator[str]:
    for page in notebooks.pages_of_people(root) if services.PERSONAL_NOTEBOOKS in profiles else ():
        if page.service not in running and (reason := networks.bind_error(LOOPBACK, page.port)):
            yield (
                f"Port {page.port} for {page.title} cannot be used ({reason}): stop the process that uses it, or run "
                f"`make notebook PERSON={page.service.removeprefix('notebook-')}`, which chooses another port."
            )


def _entrance_problems(settings: StackSettings) -> Iterator[str]:
    address = settings.bind_address
    if reason := networks.bind_error(address, 0):
        yield f"BIND_ADDRESS={address} cannot be used ({reason}): set it in .env to an address of this host."
        return
    ports = {page.setting: page.port for page in pages(settings)} | {"HTTPS_PORT": settings.https_port}
    for setting, port in ports.items():
        # Docker publishes ports as root; only another process can be in its way.
        if (reason := networks.bind_error(address, port)) and reason != os.strerror(errno.EACCES):
            yield (
                f"Port {port} of {address} cannot be used ({reason}): stop the process that uses it, or set {setting} "
                "in .env to a free port."
            )


def _network_problems(settings: StackSettings, others: dict[str, list[networks.Network]]) -> Iterator[str]:
    wanted = networks.cluster_subnet(settings)
    for name, subnets in others.items():
        if name != networks.cluster_name(settings) and any(wanted.overlaps(subnet) for subnet in subnets):
            yield (
                f"CLUSTER_NETWORK={settings.cluster_network} overlaps with Docker's network {name}: set it in .env to "
                "three other numbers, such as 10.213.80, that no network of yours uses."
            )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.strip().lstrip("v").split(".")[:2])


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
