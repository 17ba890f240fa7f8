"""Replacement of the main file of Ray's agent for runtime environments; seen in Ray 2.60.0.

Ray looks into its cache before it waits for a package's lock. A job that asks for a working directory while another
one unpacks it therefore unpacks it again, and deletes the folder in which the other one has started: "getcwd() failed".
That happened to jobs with the same files, started together on a node whose agent had just been restarted. Here, the
second job finds the folder unpacked. `ray_commands.unpack_once` installs this file.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import runpy
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

# As a script, this file's folder is first on the path, and some of its modules are named like packages.
if __name__ == "__main__":
    del sys.path[0]


def main_file() -> Path:
    """Return the file that this one stands for."""
    ray = importlib.util.find_spec("ray")
    assert ray  # noqa: S101 - Ray calls this
    assert ray.origin  # noqa: S101
    return Path(ray.origin).parent / "_private" / "runtime_env" / "agent" / "main.py"


def unpack_once() -> None:
    """Let this process unpack each working directory once, until it is deleted."""
    from ray._private.runtime_env.working_dir import WorkingDirPlugin

    create, delete_uri = WorkingDirPlugin.create, WorkingDirPlugin.delete_uri
    locks: defaultdict[str | None, asyncio.Lock] = defaultdict(asyncio.Lock)
    unpacked: set[str | None] = set()

    @functools.wraps(create)
    async def create_once(self: Any, uri: str | None, *arguments: Any, **options: Any) -> int:
        async with locks[uri]:
            if uri in unpacked:
                return 0  # the size, which Ray's cache adds to its sum
            size: int = await create(self, uri, *arguments, **options)
            unpacked.add(uri)
            return size

    @functools.wraps(delete_uri)
    def delete(self: Any, uri: str, *arguments: Any, **options: Any) -> int:
        unpacked.discard(uri)
        return int(delete_uri(self, uri, *arguments, **options))

    WorkingDirPlugin.create, WorkingDirPlugin.delete_uri = create_once, delete


if __name__ == "__main__":
    unpack_once()
    runpy.run_path(str(main_file()), run_name="__main__")
