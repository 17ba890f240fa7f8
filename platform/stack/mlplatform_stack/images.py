"""Images of the services: those that we build, those that are pulled, and removal of those of former versions."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mlplatform.errors import HostError
from mlplatform.settings.environment import environment
from mlplatform_stack import declared
from mlplatform_stack.docker import answer, compose, output
from mlplatform_stack.services import GPU_METRICS, image_setting, profiles_of, start_variables
from mlplatform_stack.settings import StackSettings

_OURS = "mlplatform-"

_VERSION = re.compile(r"mlplatform-[a-z]+:(\d+\.\d+\.\d+[a-z0-9.]*)")


def configured(root: Path, only: str | None = None) -> dict[str, dict[str, Any]]:
    """Return the services that a start includes, as Compose resolves their files and the settings.

    Raises:
        HostError: Compose rejects the files or the settings.
    """
    variables = {**environment(), **start_variables(StackSettings.load(root / ".env"), only)}
    found = json.loads(output(*compose(root, "config", "--format", "json"), env=variables))
    services: dict[str, dict[str, Any]] = found["services"]
    return services


def missing_builds(services: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the images that we build, that these services of `configured` need, and that this host lacks."""
    ours = {service["image"] for service in services.values() if service["image"].startswith(_OURS)}
    return [name for name in sorted(ours) if not is_present(name)]


def built(version: str) -> dict[str, str]:
    """Return the id of each image of a version that this host has built, by its name."""
    ours = f"reference={_OURS}*:{version}"
    listing = ("image", "ls", "--filter", ours, "--format", "{{.Repository}}:{{.Tag}} {{.ID}}")
    return dict(line.split() for line in output("docker", *listing).splitlines())


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


def pull_missing(root: Path, only: str | None = None) -> None:
    """Pull the images that a start needs and this host lacks, showing Docker's own progress; not those of exporters.

    Raises:
        HostError: an image cannot be pulled; the message names each with its setting and a way to leave its service
            out.
    """
    profiles = profiles_of(StackSettings.load(root / ".env"), only)
    problems = []
    for name, service in configured(root, only).items():
        image = service["image"]
        if GPU_METRICS in service.get("profiles", ()) or image.startswith(_OURS) or is_present(image):
            continue
        result = subprocess.run(["docker", "pull", image], stderr=subprocess.PIPE, text=True, check=False)
        if result.returncode:
            setting = image_setting(declared.services(root).get(name, {}))
            problems.append(_problem(name, service, setting, result.stderr, profiles))
    if problems:
        raise HostError("\n".join(problems))


def remove_former(root: Path) -> int:
    """Remove images of ours of former versions, and those that a build has replaced; return the number of the first.

    Docker keeps what a container uses, also a stopped one.
    """
    settings = StackSettings.load(root / ".env")
    listing = ("image", "ls", "--filter", f"reference={_OURS}*", "--format", "{{.CreatedAt}}\t{{.Repository}}:{{.Tag}}")
    lines = answer("docker", *listing).splitlines()
    replaced = f"label=com.docker.compose.project={settings.stack_prefix}mlplatform"
    answer("docker", "image", "prune", "--force", "--filter", replaced)
    return sum(bool(answer("docker", "image", "rm", name)) for name in former(lines, settings.mlplatform_version))


def former(listed: Iterable[str], current: str) -> list[str]:
    """Return the names of images of all versions but the current one, and the one that was built last before it.

    Args:
        listed: a line per image with its time and name, separated by a tab.
        current: version of this checkout.
    """
    names = [line.partition("\t")[2] for line in sorted(listed, reverse=True)]
    versions = {name: found[1] for name in names if (found := _VERSION.fullmatch(name)) and found[1] != current}
    return [name for name, version in versions.items() if version != next(iter(versions.values()))]


def _problem(name: str, service: Mapping[str, Any], setting: str, answer: str, profiles: list[str]) -> str:
    reason = (answer.strip().splitlines() or ["no reason given"])[-1]
    own = service.get("profiles", [])
    text = f"The image {service['image']} of the service {name} cannot be pulled ({reason}): "
    text += f"set {setting} in .env to one that this host reaches" if setting else "load it into Docker by hand"
    if own:
        others = ",".join(profile for profile in profiles if profile not in own)
        text += f", or leave the service out with COMPOSE_PROFILES={others}"
    return f"{text}."
