"""Pages and images of the services, from the compose files, and the groups of profiles that a start uses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlplatform.errors import SettingsError
from mlplatform_stack import declared
from mlplatform_stack.declared import Service
from mlplatform_stack.settings import StackSettings


@dataclass(frozen=True)
class Page:
    """A port that a service publishes on the host.

    Attributes:
        title: title of the page.
        service: name of the service in the compose files.
        setting: variable of `.env` with the port; empty if that is in a generated file.
        login: how to log in.
        name: name below `localhost` and DOMAIN; empty for what only programs use.
        port: the port.
        written: the port as the compose files write it, a variable.
        inside: the port in the container.
        facts: what the service's `x-mlplatform` has about it.
        profile: profile that starts the service; empty if each start does.
    """

    title: str
    service: str
    setting: str
    login: str
    name: str = ""
    port: int = 0
    written: str = ""
    inside: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)
    profile: str = ""


STORE = "minio"
"""The stack's own object store."""

STORES = ("postgres", STORE)
"""Services with the stack's data, on which all others depend: they start first and stop last."""

GPU_METRICS = "gpu-metrics"
"""Profile of the exporters of GPU metrics, without which everything else works."""

GPU_PROFILES = ("tracking", "ray", "notebook", "monitoring", "grafana", GPU_METRICS)
"""Profiles of a host with GPUs."""

_OTHERS = {"tracking": ("ray", GPU_METRICS, "hosts"), "ray": ("tracking",)}
"""Profiles of the other half of the stack, which `make up ONLY=...` leaves out."""

_PORT = re.compile(r"127\.0\.0\.1:(\$\{(\w+)\}):(\d+)")


def start_variables(settings: StackSettings, only: str | None) -> dict[str, str]:
    """Return the variables of Compose for a start: its profiles, and the address of the half that it leaves out."""
    profiles = {"COMPOSE_PROFILES": ",".join(profiles_of(settings, only))}
    if not only:
        return profiles
    # Empty means no server. Jobs and the notebook then report that instead of waiting for one.
    return {**profiles, "TRACKING_ADDRESS" if only == "ray" else "JOBS_ADDRESS": ""}


def profiles_of(settings: StackSettings, only: str | None = None) -> list[str]:
    """Return the profiles that a start uses.

    BACKUP_TO adds that of the timer of backups.

    Raises:
        SettingsError: `only` is unknown.
    """
    if only and only not in _OTHERS:
        raise SettingsError(f"ONLY={only} is unknown; use one of {', '.join(_OTHERS)}, or leave it out for everything.")
    left_out = {"", *_OTHERS.get(only or "", ())}
    profiles = settings.compose_profiles.split(",")
    if settings.backup_to:
        profiles.append("backup-timer")
    return [profile for profile in dict.fromkeys(profiles) if profile not in left_out]


def stores(settings: StackSettings) -> list[str]:
    """Return those of `STORES` that these settings can start."""
    return [name for name in STORES if name != STORE or not settings.s3_endpoint_url]


def exporters(root: Path) -> list[str]:
    """Return the exporters of GPU metrics of any accelerator, without which everything else works."""
    files = [declared.of_file(file) for file in sorted((root / "compose").glob("*.yaml"))]
    return [name for found in files for name, own in found.items() if GPU_METRICS in own.get("profiles", ())]


def image_setting(service: Service) -> str:
    """Return the variable of `.env` that names another image for a service; empty if there is none."""
    found = re.match(r"\$\{(\w+):-", service.get("image", ""))
    return found[1] if found else ""


def pages(root: Path, known: Mapping[str, str] | None = None) -> list[Page]:
    """Return every page that a stack can publish, in the order in which people need them.

    Args:
        known: variables of the settings; by default those with which Compose reads the files.

    Raises:
        SettingsError: a port is not one.
    """
    known = declared.values(root) if known is None else known
    found = [
        (entry.get("order", float("inf")), _page(name, service, entry, known))
        for name, service in declared.services(root, known, generated=False).items()
        for entry in declared.facts(service).get("endpoints", ())
        if "title" in entry
    ]
    return [page for _, page in sorted(found, key=lambda each: each[0])]


def ssh_line(shown: Sequence[Page], user_at_host: str) -> str:
    """Return the one command that forwards pages to a laptop, on the same ports."""
    forwards = " ".join(f"-L {page.port}:127.0.0.1:{page.port}" for page in shown)
    return f"ssh -N {forwards} {user_at_host}"


def _page(name: str, service: Service, entry: Mapping[str, Any], known: Mapping[str, str]) -> Page:
    published = {int(found[3]): found for port in service.get("ports", ()) if (found := _PORT.fullmatch(port))}
    written, setting, _ = published[entry["port"]].groups()
    if not (port := declared.resolve(written, known)).isdecimal() or not 0 < int(port) < 65536:
        raise SettingsError(f"{setting}={port!r} is not a port: set it in .env to a number from 1 to 65535.")
    return Page(
        *(entry["title"], name, setting, entry["login"]),
        name="" if entry.get("programs") else entry["names"][0],
        port=int(port),
        written=written,
        inside=entry["port"],
        facts=entry,
        profile=next(iter(service.get("profiles", ())), ""),
    )
