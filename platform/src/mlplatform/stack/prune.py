"""Removal of what the gateway no longer needs, as `make prune` lists it: old checkpoints, packages and runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from mlplatform.client.connection import Connection
from mlplatform.errors import HostError, StorageError
from mlplatform.stack import env

_PATH = "/platform/prune"

_PATIENCE = httpx.Timeout(600.0, connect=5.0)
"""Listing a large bucket takes minutes."""


@dataclass(frozen=True)
class Amount:
    """Number and bytes of what can be removed, or was, of one kind."""

    kind: str
    count: int
    bytes: int


def plan(root: Path) -> list[Amount]:
    """Return what `apply` would remove now.

    Raises:
        UnreachableError, StorageError: a service does not answer.
    """
    with Connection(env.client_settings(root)) as gateway:
        kinds = gateway.call("GET", _PATH, timeout=_PATIENCE).json()["kinds"]
        return [Amount(kind["kind"], kind["count"], kind["bytes"]) for kind in kinds]


def apply(root: Path) -> Iterator[Amount]:
    """Remove what can be removed now; yield an amount for each removed thing.

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
                yield Amount(entry["kind"], 1, entry["bytes"])
    except httpx.TransportError as error:
        raise HostError(f"The gateway did not remove everything ({error}): repeat the command.") from error
