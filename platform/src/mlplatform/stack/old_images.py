"""Images of the platform that no version in use needs: former versions, and those that a build has replaced."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from mlplatform.errors import HostError

TITLE = "images of former versions"

_OURS = re.compile(r"mlplatform-[a-z]+:(\d+\.\d+\.\d+[a-z0-9.]*)")

_PROJECT = "com.docker.compose.project"
"""Label that Compose gives to the images that it builds."""

_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@dataclass(frozen=True)
class Image:
    """An image on this host.

    Attributes:
        id: digest of its contents.
        tags: its names; empty once a build has given them to another image.
        created: time as ISO 8601 text.
        project: name of the stack that has built it; empty if it was not Compose.
    """

    id: str
    tags: tuple[str, ...]
    created: str
    project: str = ""


def removable(images: Iterable[Image], current: str, project: str, in_use: Collection[str]) -> list[Image]:
    """Return the images that can be removed: they are built again, or pulled, if somebody needs them.

    Kept are those of the current version and of the one that was built last before it, to which an upgrade may return.

    Args:
        images: of this host, those of others included.
        current: version of this checkout.
        project: name of this stack.
        in_use: ids of the images of all containers, stopped ones included.
    """
    known = list(images)
    versions = {version: image.created for image in sorted(known, key=_created) for version in _versions(image)}
    others = sorted((version for version in versions if version != current), key=lambda version: versions[version])
    kept = {current, *others[-1:]}

    def is_old(image: Image) -> bool:
        if image.tags:
            found = _versions(image)
            return len(found) == len(image.tags) and not kept & set(found)
        return image.project == project

    return [image for image in known if image.id not in in_use and is_old(image)]


def find(current: str, project: str) -> list[Image]:
    """Return the images of this host that can be removed.

    Raises:
        HostError: Docker does not answer.
    """
    containers = _lines("docker", "ps", "--all", "--quiet", "--no-trunc")
    in_use = set(_lines("docker", "inspect", "--format", "{{.Image}}", *containers)) if containers else set()
    return removable(_images(project), current, project, in_use)


def unique_sizes(images: Collection[Image]) -> list[int]:
    """Return the bytes of each image that no other image shares, which its removal frees at least."""
    if not images:
        return []
    listing = json.loads("".join(_lines("docker", "system", "df", "--verbose", "--format", "{{json .Images}}")))
    sizes = {entry["ID"].removeprefix("sha256:")[:12]: _bytes(entry["UniqueSize"]) for entry in listing}
    return [sizes.get(image.id.removeprefix("sha256:")[:12], 0) for image in images]


def remove(image: Image) -> bool:
    """Remove an image with its tags; False if it is in use after all."""
    names = image.tags or (image.id,)
    result = subprocess.run(["docker", "image", "rm", *names], capture_output=True, text=True, check=False)
    return not result.returncode


def _images(project: str) -> Iterator[Image]:
    ours = ("--filter", "reference=mlplatform-*")
    replaced = ("--filter", "dangling=true", "--filter", f"label={_PROJECT}={project}")
    listing = ("docker", "image", "ls", "--quiet", "--no-trunc")
    ids = {line for some in (ours, replaced) for line in _lines(*listing, *some)}
    if not ids:
        return
    for entry in json.loads("\n".join(_lines("docker", "image", "inspect", *sorted(ids)))):
        labels = entry["Config"].get("Labels") or {}
        yield Image(entry["Id"], tuple(entry["RepoTags"] or ()), entry["Created"], labels.get(_PROJECT, ""))


def _versions(image: Image) -> list[str]:
    return [found[1] for tag in image.tags if (found := _OURS.fullmatch(tag))]


def _created(image: Image) -> str:
    return image.created


def _bytes(text: str) -> int:
    found = re.fullmatch(r"([\d.]+)([kMGT]?B)", text)
    return int(float(found[1]) * _UNITS[found[2]]) if found else 0


def _lines(*command: str) -> list[str]:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise HostError(f"`{' '.join(command[:3])}` failed: {result.stderr.strip()}")
    return result.stdout.splitlines()
