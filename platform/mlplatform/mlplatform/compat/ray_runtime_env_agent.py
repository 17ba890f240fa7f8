"""Replacement of the main file of Ray's agent for runtime environments; seen in Ray 2.60.0.

Ray looks into its cache before it waits for a package's lock. A job that asks for a working directory while another
one unpacks it therefore unpacks it again, and deletes the folder in which the other one has started: "getcwd() failed".
That happened to jobs with the same files, started together on a node whose agent had just been restarted. Here, the
second job waits, and finds the folder in the cache. `ray_commands.change_raylet` installs this file.

Ray starts a worker whose Python cannot start (`py_executable`, such as `uv run` with a package that does not exist)
again and again, and the job stays PENDING for 20 minutes without a reason. Here, making its environment fails,
with the last lines of its output.

For each distinct list of pip or uv packages, Ray copies the environment of the node, 5.9 GB, and downloads all that it
adds. Here, the list gets an environment in front of the node's, and downloads come from the caches of pip and uv. Ray
keeps these environments as it keeps its copies, RAY_RUNTIME_ENV_PIP_CACHE_SIZE_GB and RAY_RUNTIME_ENV_UV_CACHE_SIZE_GB.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import runpy
import shutil
import signal
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

# As a script, this file's folder is first on the path, and some of its modules are named like packages.
if __name__ == "__main__":
    del sys.path[0]

from mlplatform import overlay
from mlplatform.compat import ray_setup_worker
from mlplatform.compat.patches import around
from mlplatform_warm.ray import node

REASON_LINES = 15
"""Last lines of a Python's output that are shown if it does not start."""


def private(name: str) -> Path:
    """Return the path of a file in Ray's folder `_private`."""
    ray = importlib.util.find_spec("ray")
    assert ray  # noqa: S101 - Ray calls this
    assert ray.origin  # noqa: S101
    return Path(ray.origin).parent / "_private" / name


def unpack_once() -> None:
    """Let this process look for a working directory in Ray's cache only while no other job is unpacking it."""
    from ray._private.runtime_env import plugin as plugins

    locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @around(plugins, "create_for_plugin_if_needed")
    async def create_alone(create: Any, environment: Any, plugin: Any, *arguments: Any, **options: Any) -> None:
        async with locks[environment.working_dir()] if plugin.name == "working_dir" else nullcontext():
            await create(environment, plugin, *arguments, **options)


def overlay_packages() -> None:
    """Let this process install lists of packages in front of its own environment, whose packages uv and pip see."""
    from ray._private.runtime_env import dependency_utils, virtualenv_utils
    from ray._private.runtime_env.pip import PipProcessor
    from ray._private.runtime_env.uv import UvProcessor

    def bin_of(path: str) -> Path:
        return Path(virtualenv_utils.get_virtualenv_path(path), "bin")

    @around(virtualenv_utils, "create_or_get_virtualenv")
    async def create(_copy: Any, path: str, _folder: str, _logger: Any) -> None:
        environment = virtualenv_utils.get_virtualenv_path(path)
        # Half of one, if the agent was killed.
        await asyncio.to_thread(shutil.rmtree, environment, ignore_errors=True)
        await asyncio.to_thread(overlay.create, Path(environment))

    @around(PipProcessor, "_install_pip_packages")
    async def install_with_pip(install: Any, self: Any, *arguments: Any) -> None:
        self._pip_config = {"pip_install_options": ["--disable-pip-version-check"], **self._pip_config}
        await install(self, *arguments)
        node.write_python(bin_of(arguments[0]))

    @around(UvProcessor, "_install_uv_packages")
    async def install_with_uv(install: Any, self: Any, path: str, *arguments: Any) -> None:
        # Ray's default, which a dictionary has, too (`validation.parse_and_validate_uv`).
        if self._uv_config.get("uv_pip_install_options", ["--no-cache"]) == ["--no-cache"]:
            self._uv_config = {**self._uv_config, "uv_pip_install_options": []}
        with overlay.known_to_uv(Path(virtualenv_utils.get_virtualenv_path(path))):
            await install(self, path, *arguments)
        node.write_python(bin_of(path))

    dependency_utils.check_ray = check_ray


@asynccontextmanager
async def check_ray(python: str, _folder: str, _logger: Any) -> AsyncIterator[None]:
    """Refuse packages with another version of Ray, as Ray's function does, which imports Ray twice, 1.5 s each."""
    from ray import __version__ as ours

    yield
    for found in Path(python).parents[1].glob("lib/*/site-packages/ray-*.dist-info"):
        if (version := found.stem[4:]) != ours:
            raise RuntimeError(
                f"The packages of this job include ray {version}: its nodes need ray=={ours} in the list."
            )


def try_executables() -> None:
    """Let this process try the Python that a job names, with the file that its workers begin with."""
    from ray._private.runtime_env.py_executable import PyExecutablePlugin

    async def create(self: Any, uri: str | None, runtime_env: Any, context: Any, logger: Any = None) -> int:
        await _try({**vars(context), "py_executable": runtime_env.py_executable()})
        return 0

    PyExecutablePlugin.create = create


async def _try(context: dict[str, Any]) -> None:
    """Start a worker as a node does, to its end.

    Args:
        context: fields of Ray's `RuntimeEnvContext`.

    Raises:
        RuntimeError: it fails; with the last lines of its output.
    """
    starter = (sys.executable, ray_setup_worker.__file__, f"{ray_setup_worker.CONTEXT}{json.dumps(context)}")
    worker = (f"{ray_setup_worker.LANGUAGE}PYTHON", str(private("workers/default_worker.py")), "--help")
    process = await asyncio.create_subprocess_exec(
        *starter, *worker, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = await process.communicate()
    finally:
        # Also after a time-out, and with it what it has started.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        reason = "\n".join(output.decode(errors="replace").splitlines()[-REASON_LINES:])
        raise RuntimeError(f"py_executable={context['py_executable']!r} does not start Ray's workers:\n{reason}")


if __name__ == "__main__":
    unpack_once()
    overlay_packages()
    try_executables()
    runpy.run_path(str(private("runtime_env/agent/main.py")), run_name="__main__")
