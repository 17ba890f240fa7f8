"""Removal of what the stack no longer needs, as `make prune` lists it: on Ray's nodes, in the gateway, and images."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from mlplatform.client.connection import Connection
from mlplatform.errors import HostError, StorageError
from mlplatform.settings.stack import StackSettings
from mlplatform.stack import compose as stack_compose
from mlplatform.stack import env, old_images

_RAY_FILES = ("python", "-m", "mlplatform.services.ray_files", "/tmp/ray")  # noqa: S108 - Ray's own folder

_NODE = ("ray-head", "ray-worker")

_PATH = "/platform/prune"

_PATIENCE = httpx.Timeout(600.0, connect=5.0)
"""Listing a large bucket takes minutes."""


@dataclass(frozen=True)
class Amount:
    """Number and bytes of what can be removed, or was, of one kind at one place."""

    kind: str
    place: str
    count: int
    bytes: int


def plan(root: Path) -> list[Amount]:
    """Return what `apply` would remove now.

    Raises:
        HostError: the stack does not run, or Docker does not answer.
        UnreachableError, StorageError: a service does not answer.
    """
    found = [_amount(node, line) for node in _nodes(root) for line in _on_node(root, node)]
    connection = Connection(env.client_settings(root))
    try:
        kinds = connection.call("GET", _PATH, timeout=_PATIENCE).json()["kinds"]
    finally:
        connection.close()
    found += [_amount("gateway", kind) for kind in kinds]
    images = _old_images(root)
    return [*found, Amount(old_images.TITLE, "this host", len(images), sum(old_images.unique_sizes(images)))]


def apply(root: Path) -> Iterator[Amount]:
    """Remove what can be removed now; yield an amount for each removed thing.

    Raises:
        HostError, UnreachableError, StorageError: as `plan`; what was yielded before is removed.
    """
    for node in _nodes(root):
        yield from (_amount(node, line) for line in _on_node(root, node, "apply"))
    yield from _in_gateway(root)
    images = _old_images(root)
    for image, size in zip(images, old_images.unique_sizes(images), strict=True):
        if old_images.remove(image):
            yield Amount(old_images.TITLE, "this host", 1, size)


def total(amounts: Iterable[Amount]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return count and bytes together, by kind and place."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for one in amounts:
        count, size = found.get((one.kind, one.place), (0, 0))
        found[one.kind, one.place] = (count + one.count, size + one.bytes)
    return found


def remove_unused_images(root: Path) -> int:
    """Remove images of former versions, and return their number."""
    # Without their sizes, for which Docker measures every volume.
    return sum(map(old_images.remove, _old_images(root)))


def _in_gateway(root: Path) -> Iterator[Amount]:
    connection = Connection(env.client_settings(root))
    try:
        with connection.http.stream("POST", _PATH, timeout=_PATIENCE) as answer:
            if not answer.is_success:
                raise StorageError(f"The gateway removed nothing ({answer.status_code}): {answer.read().decode()}")
            for line in answer.iter_lines():
                entry = json.loads(line)
                if "error" in entry:
                    raise StorageError(f"The gateway did not remove everything: {entry['error']}")
                yield _amount("gateway", {**entry, "count": 1})
    except httpx.TransportError as error:
        raise HostError(f"The gateway did not remove everything ({error}): repeat the command.") from error
    finally:
        connection.close()


def _nodes(root: Path) -> list[str]:
    running = stack_compose.running(root)
    if "gateway" not in running:
        raise HostError("The stack is not running; start it with `make up`.")
    return sorted(name for name in running if name.startswith(_NODE))


def _on_node(root: Path, node: str, *verb: str) -> Iterator[dict[str, Any]]:
    """Yield what the program on a node prints."""
    container = f"{StackSettings.load(root / '.env').prefix}{node}"
    command = ["docker", "exec", container, *_RAY_FILES, *verb]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield from map(json.loads, process.stdout or ())
    if process.returncode:
        raise HostError(f"Ray's files on {container} could not be looked through: the reason is above.")


def _old_images(root: Path) -> list[old_images.Image]:
    settings = StackSettings.load(root / ".env")
    return old_images.find(settings.version, f"{settings.prefix}mlplatform")


def _amount(place: str, line: dict[str, Any]) -> Amount:
    return Amount(line["kind"], place, int(line["count"]), int(line["bytes"]))
