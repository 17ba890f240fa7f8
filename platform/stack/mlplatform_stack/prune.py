"""Removal of what the gateway no longer needs, as `make prune` lists it: old checkpoints, packages and runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx

from mlplatform.api.storage import Prunable, Unneeded
from mlplatform.client.connection import Connection
from mlplatform.errors import HostError, StorageError
from mlplatform_stack import env

_PATH = "/platform/prune"

_PATIENCE = httpx.Timeout(600.0, connect=5.0)
"""Listing a large bucket takes minutes."""


def plan(root: Path) -> list[Unneeded]:
    """Return what `apply` would remove now.

    Raises:
        UnreachableError, StorageError: a service does not answer.
    """
    with Connection(env.client_settings(root)) as gateway:
        return gateway.read(Prunable, "GET", _PATH, timeout=_PATIENCE).kinds


def apply(root: Path) -> Iterator[Unneeded]:
    """Remove what can be removed now; yield each removed thing.

    Raises:
        HostError, StorageError: a service does not answer; what was yielded before is removed.
    """
    try:
        with (
            Connection(env.client_settings(root)) as gateway,
            gateway.http.stream("POST", _PATH, timeout=_PATIENCE) as answer,
        ):
            if not answer.is_success:
                raise StorageError(f"The gateway removed nothing ({answer.status_code}): {answer.read().decode()}")
            for line in answer.iter_lines():
                entry = json.loads(line)
                if "error" in entry:
                    raise StorageError(f"The gateway did not remove everything: {entry['error']}")
                yield Unneeded(kind=entry["kind"], count=1, files=entry["files"], bytes=entry["bytes"])
    except httpx.TransportError as error:
        raise HostError(f"The gateway did not remove everything ({error}): repeat the command.") from error
