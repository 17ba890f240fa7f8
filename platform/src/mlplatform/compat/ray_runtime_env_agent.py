"""Replacement of the main file of Ray's agent for runtime environments; seen in Ray 2.60.0.

Ray looks into its cache before it waits for a package's lock. A job that asks for a working directory while another
one unpacks it therefore unpacks it again, and deletes the folder in which the other one has started: "getcwd() failed".
That happened to jobs with the same files, started together on a node whose agent had just been restarted. Here, the
second job finds the folder unpacked. `ray_commands.unpack_once` installs this file.

Ray starts a worker that ends before it has registered again each minute, indefinitely, and hides its last words;
meanwhile it takes one of the places of the node's starts. Here, an environment in which a worker might not start is
tried first: if it fails, the environment cannot be made, and the job fails with the reason.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import os
import runpy
import shlex
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

# As a script, this file's folder is first on the path, and some of its modules are named like packages.
if __name__ == "__main__":
    del sys.path[0]


LAST_PLUGIN = "image_uri"
"""Name of the plugin that Ray applies last (`RuntimeEnvAgent._base_plugins`)."""

_READ_BY_PYTHON = ("PYTHON", "LD_")
"""Beginnings of variables with which Python may not start."""

_REASON_LINES = 15


def private_file(*path: str) -> Path:
    """Return a file of Ray's private package, without importing Ray."""
    ray = importlib.util.find_spec("ray")
    assert ray  # noqa: S101 - Ray calls this
    assert ray.origin  # noqa: S101
    return Path(ray.origin).parent.joinpath("_private", *path)


def main_file() -> Path:
    """Return the file that this one stands for."""
    return private_file("runtime_env", "agent", "main.py")


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


def try_starts() -> None:
    """Let this process start a worker's program once in each environment in which it might fail."""
    from ray._private.runtime_env.agent import runtime_env_agent

    create = runtime_env_agent.create_for_plugin_if_needed

    @functools.wraps(create)
    async def create_and_try(environment: Any, plugin: Any, cache: Any, context: Any, *arguments: Any) -> None:
        await create(environment, plugin, cache, context, *arguments)
        if plugin.name == LAST_PLUGIN and may_fail(context):
            await try_start(context)

    runtime_env_agent.create_for_plugin_if_needed = create_and_try


def may_fail(context: Any) -> bool:
    """Return whether a worker might not start: another Python, variables that it reads, or modules that hide others.

    Args:
        context: `ray._private.runtime_env.context.RuntimeEnvContext`.
    """
    if context.py_executable != sys.executable:
        return True
    if any(name.startswith(_READ_BY_PYTHON) for name in context.env_vars.keys() - {"PYTHONPATH", "PYTHONUNBUFFERED"}):
        return True
    folders = filter(None, context.env_vars.get("PYTHONPATH", "").split(os.pathsep))
    return any(_hides_module(path) for folder in folders if Path(folder).is_dir() for path in Path(folder).iterdir())


def _hides_module(path: Path) -> bool:
    is_module = path.suffix == ".py" or (path / "__init__.py").is_file()
    return (
        is_module
        and not path.stem.startswith("__")
        and path.stem.isidentifier()
        and importlib.util.find_spec(path.stem) is not None
    )


async def try_start(context: Any) -> None:
    """Start a worker's program as `ray_setup_worker` does, only to print its options.

    Raises:
        RuntimeError: it fails; with the last lines of its output.
    """
    program = context.override_worker_entrypoint or str(private_file("workers", "default_worker.py"))
    command = [*context.command_prefix, "exec", context.py_executable, shlex.quote(program), "--help"]
    variables = {name: os.path.expandvars(value) for name, value in context.env_vars.items()}
    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", " ".join(command)),
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    if process.returncode:
        reason = "\n".join(output.decode("utf-8", "replace").strip().splitlines()[-_REASON_LINES:])
        raise RuntimeError(
            f"Ray's worker cannot start in the job's environment (exit code {process.returncode}); correct its Python, "
            f"packages, variables or module names:\n{reason}"
        )


if __name__ == "__main__":
    unpack_once()
    try_starts()
    runpy.run_path(str(main_file()), run_name="__main__")
