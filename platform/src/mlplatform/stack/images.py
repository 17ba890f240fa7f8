"""Images of the services: those that we build, those that are pulled, and removal of those of former versions."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from mlplatform.errors import HostError
from mlplatform.settings.environment import environment
from mlplatform.settings.stack import StackSettings
from mlplatform.stack.docker import answer, compose, output
from mlplatform.stack.services import (
    GPU_EXPORTERS,
    NOTEBOOK,
    PERSONAL_NOTEBOOKS,
    SERVICES,
    only_variables,
    profiles_of,
    started,
)

_OURS = "mlplatform-"

_VERSION = re.compile(r"mlplatform-[a-z]+:(\d+\.\d+\.\d+[a-z0-9.]*)")


def missing_builds(settings: StackSettings, profiles: list[str]) -> list[str]:
    """Return the images that we build, that a start with these profiles needs, and that this host lacks."""
    # Not those that a setting replaces; most services have no such setting.
    ours = (each for each in started(settings, profiles) if not getattr(settings, each.image_setting.lower(), ""))
    built = {service.built for service in ours} - {""}
    if PERSONAL_NOTEBOOKS in profiles:
        built.add(NOTEBOOK)
    names = [f"{_OURS}{name}:{settings.version}" for name in sorted(built)]
    return [name for name in names if not is_present(name)]


def is_present(image: str) -> bool:
    """Return whether this host has an image."""
    return bool(answer("docker", "image", "inspect", "--format", "{{.Id}}", image))


def tagged(image: str) -> str:
    """Return the name and tag of an image, and set the tag if the image is known by its digest only.

    Raises:
        HostError: this host lacks the image.
    """
    name, _, digest = image.partition("@")
    if digest and subprocess.run(["docker", "tag", image, name], capture_output=True, check=False).returncode:
        raise HostError(f"This host lacks the image {image}: run `make up` first.")
    return name


def chosen(root: Path, only: str | None = None, *, all_profiles: bool = False) -> dict[str, str]:
    """Return the image of each service that a start includes, or of every service, as Compose resolves it.

    Raises:
        HostError: Compose rejects the files or the settings.
    """
    variables = only_variables(StackSettings.load(root / ".env"), only)
    command = compose(root, *(("--profile", "*") if all_profiles else ()), "config", "--format", "json")
    config = json.loads(output(*command, env={**environment(), **variables}))
    return {name: str(service["image"]) for name, service in config["services"].items()}


def pull_missing(root: Path, only: str | None = None) -> None:
    """Pull the images that a start needs and this host lacks, showing Docker's own progress; not those of exporters.

    Raises:
        HostError: an image cannot be pulled; the message names each with its setting and a way to leave its service
            out.
    """
    profiles = profiles_of(StackSettings.load(root / ".env"), only)
    problems = []
    for service, image in chosen(root, only).items():
        if service in GPU_EXPORTERS.values() or image.startswith(_OURS) or is_present(image):
            continue
        result = subprocess.run(["docker", "pull", image], stderr=subprocess.PIPE, text=True, check=False)
        if result.returncode:
            problems.append(_problem(service, image, result.stderr, profiles))
    if problems:
        raise HostError("\n".join(problems))


def remove_former(root: Path) -> int:
    """Remove images of ours of former versions, and those that a build has replaced; return the number of the first.

    Docker keeps what a container uses, also a stopped one.
    """
    settings = StackSettings.load(root / ".env")
    listing = ("image", "ls", "--filter", f"reference={_OURS}*", "--format", "{{.CreatedAt}}\t{{.Repository}}:{{.Tag}}")
    lines = answer("docker", *listing).splitlines()
    replaced = f"label=com.docker.compose.project={settings.prefix}mlplatform"
    answer("docker", "image", "prune", "--force", "--filter", replaced)
    return sum(bool(answer("docker", "image", "rm", name)) for name in former(lines, settings.version))


def former(listed: Iterable[str], current: str) -> list[str]:
    """Return the names of images of all versions but the current one, and the one that was built last before it.

    Args:
        listed: a line per image with its time and name, separated by a tab.
        current: version of this checkout.
    """
    names = [line.partition("\t")[2] for line in sorted(listed, reverse=True)]
    versions = {name: found[1] for name in names if (found := _VERSION.fullmatch(name)) and found[1] != current}
    return [name for name, version in versions.items() if version != next(iter(versions.values()))]


def _problem(name: str, image: str, answer: str, profiles: list[str]) -> str:
    reason = (answer.strip().splitlines() or ["no reason given"])[-1]
    service = next((service for service in SERVICES if service.name == name), None)
    setting = service.image_setting if service else ""
    text = f"The image {image} of the service {name} cannot be pulled ({reason}): "
    text += f"set {setting} in .env to one that this host reaches" if setting else "load it into Docker by hand"
    if service and service.profile:
        others = ",".join(profile for profile in profiles if profile != service.profile)
        text += f", or leave the service out with COMPOSE_PROFILES={others}"
    return f"{text}."
