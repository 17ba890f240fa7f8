"""Conditions of a start on this host, which `make doctor` shows, too; one error lists all problems with their fix."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from mlplatform.errors import HostError
from mlplatform_stack import engine, images, networks, secrets_folder, sizing
from mlplatform_stack.docker import answer, running
from mlplatform_stack.host import driver_problems, this_host
from mlplatform_stack.services import pages
from mlplatform_stack.settings import LOOPBACK, PROXY, StackSettings

_GB = 10**9


def check_host(root: Path, only: str | None = None) -> list[str]:
    """Check that the stack can start on this host, and that its settings fit it.

    Args:
        only: half of the stack to start; empty for all of it.

    Returns:
        One sentence per setting that no longer fits this host, or that jobs can reach credentials of the host.

    Raises:
        HostError: it cannot start; one line per problem, each with its fix.
        SettingsError: `.env` is missing or has an invalid value.
    """
    settings = StackSettings.load(root / ".env")
    problems = [*engine.problems()]
    if not problems:
        services = images.configured(root, only)
        info = json.loads(answer("docker", "info", "--format", "{{json .}}"))
        options = info.get("SecurityOptions") or []
        problems += [
            *engine.restrictions(root, settings, options, Path("/dev")),
            *_accelerator_problems(root, settings, info),
            *_name_problems(settings, {service.get("container_name") for service in services.values()}),
            *_disk_problems(Path(info["DockerRootDir"]), settings.disk_needed_gb),
            *(f"The image {image} is not built: run `make build`." for image in images.missing_builds(services)),
            *_port_problems(root, settings, set(services) - running(root), options),
            *_network_problems(settings, networks.subnets()),
        ]
    problems += secrets_folder.account_problems(root / "secrets", settings)
    if problems:
        raise HostError("\n".join(problems))
    return [*sizing.misfits(settings, this_host()), *networks.metadata_notes(settings)]


def _accelerator_problems(root: Path, settings: StackSettings, info: dict[str, Any]) -> Iterator[str]:
    if settings.accelerator == "cuda":
        yield from driver_problems(root, settings.torch_index_url)
    if settings.accelerator == "cuda" and "nvidia" not in (info.get("Runtimes") or {}):
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


def _port_problems(
    root: Path, settings: StackSettings, starting: Collection[str], options: Collection[str]
) -> Iterator[str]:
    for page in pages(root):
        if page.service not in starting:
            continue
        if reason := networks.bind_error(LOOPBACK, page.port):
            yield (
                f"Port {page.port} for {page.title} cannot be used ({reason}): stop the process that uses it, or set "
                f"{page.setting} in .env to a free port."
            )
    if PROXY in starting:
        yield from _entrance_problems(root, settings, options)


def _entrance_problems(root: Path, settings: StackSettings, options: Collection[str] = ()) -> Iterator[str]:
    address = settings.bind_address
    if reason := networks.bind_error(address, 0):
        yield f"BIND_ADDRESS={address} cannot be used ({reason}): set it in .env to an address of this host."
        return
    ports = {page.setting: page.port for page in pages(root)} | {"HTTPS_PORT": settings.https_port}
    for setting, port in ports.items():
        reason = networks.bind_error(address, port)
        if reason == os.strerror(errno.EACCES) and "name=rootless" in options:
            yield (
                f"Docker runs without root and may not publish port {port} of {address}: set {setting} in .env to a "
                f"port above 1023, or run `sudo sysctl net.ipv4.ip_unprivileged_port_start={port}`."
            )
        # Docker with root publishes ports as root; only another process can be in its way.
        elif reason and reason != os.strerror(errno.EACCES):
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


def _name_problems(settings: StackSettings, wanted: Collection[str | None]) -> Iterator[str]:
    listing = answer("docker", "ps", "--all", "--format", '{{.Names}}\t{{.Label "com.docker.compose.project"}}')
    containers = dict(line.split("\t") for line in listing.splitlines() if "\t" in line)
    foreign = [name for name, project in containers.items() if project != f"{settings.stack_prefix}mlplatform"]
    if taken := sorted(name for name in foreign if name in wanted):
        yield (
            f"Containers that belong to others have names of the stack's ({', '.join(taken)}): set STACK_PREFIX in "
            ".env to a prefix that none of them has, such as ml-."
        )
