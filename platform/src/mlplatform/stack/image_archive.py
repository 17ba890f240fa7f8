"""Docker images as a stream: out of this host's engine, and into it. Standard library only, as `unbundle` needs it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Protocol

from mlplatform.errors import HostError

CHUNK_BYTES = 1 << 20


class Output(Protocol):
    """A file, or something else that takes bytes."""

    def write(self, data: bytes, /) -> object:
        """Write all of `data`."""


def save(names: Iterable[str], out: Output) -> None:
    """Write images as a tar.

    Raises:
        HostError: Docker cannot save them.
    """
    with subprocess.Popen(["docker", "save", *names], stdout=subprocess.PIPE) as process:
        for chunk in iter(partial(process.stdout.read, CHUNK_BYTES) if process.stdout else bytes, b""):
            out.write(chunk)
    if process.returncode:
        raise HostError(f"`docker save` exited with {process.returncode}.")


def load(chunks: Iterable[bytes], again: str) -> None:
    """Pass a tar of images, compressed or not, to Docker.

    Args:
        chunks: the tar.
        again: what to do once there is room, for the error.

    Raises:
        HostError: Docker cannot load them.
    """
    # A `docker load` that fails closes its end; its exit status then tells.
    with suppress(BrokenPipeError), subprocess.Popen(["docker", "load"], stdin=subprocess.PIPE) as process:
        for chunk in chunks:
            if process.stdin:
                process.stdin.write(chunk)
    if process.returncode:
        raise HostError(f"`docker load` exited with {process.returncode}: free some space, then {again}.")
