"""Hooks of Ray nodes: `ray start` calls the function that RAY_START_HOOK names, before it starts the node."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from mlplatform.compat import ray_commands
from mlplatform.node import environments, gpu_watch, uv_run
from mlplatform.node import files as ray_files
from mlplatform.settings.environment import environment, set_environment
from mlplatform.settings.job import NodeSettings
from mlplatform_warm.ray import node

_STACK_START_SECONDS = {"head": 40.0, "worker": 20.0}
"""The stack's other services start meanwhile; imports on each node would compete with them for the host's CPUs. The
head starts first, 15 s before the workers."""


def prepare(parameters: Any, head: bool) -> None:
    """Prepare a node of the stack, whose head runs no jobs.

    Args:
        parameters: `ray._private.parameter.RayParams`.
        head: whether the node is the head, which has only Ray's own actors.
    """
    ray_commands.prepare_node(parameters)
    folder = Path(tempfile.gettempdir())
    remove_leftovers(folder / "ray")
    root = folder / "ray" / environments.FOLDER
    _install_uv(root)
    set_environment({name: str(root / path) for name, path in environments.CACHES.items()})
    gpu_watch.start()
    _start_templates(folder / "warm", _STACK_START_SECONDS["head" if head else "worker"], head=head)


def prepare_local(parameters: Any, head: bool) -> None:
    """Prepare the only node of the embedded platform.

    Args:
        parameters: as of `prepare`.
        head: True.
    """
    ray_commands.prepare_node(parameters)
    ray_commands.disable_client_server(parameters)
    _install_uv(Path(parameters.temp_dir) / environments.FOLDER)
    _start_templates(Path(parameters.temp_dir) / "warm")


def remove_leftovers(sessions: Path) -> None:
    """Remove what former starts of the node have left, and start the process that removes old files once per hour."""
    ray_files.prepare_start(sessions)
    command = [sys.executable, "-m", ray_files.__name__, str(sessions), str(NodeSettings.load().environments_gb)]
    subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def _install_uv(root: Path) -> None:
    """Put our `uv` first on the PATH of jobs, if the node has the program itself."""
    if uv_run.UV.is_file():
        programs = uv_run.install(root, NodeSettings.load().environments_gb)
        set_environment({"PATH": f"{programs}:{environment()['PATH']}"})


def _start_templates(folder: Path, wait_seconds: float = 0, *, head: bool = False) -> None:
    if NodeSettings.load().warm_start:
        node.start_templates(folder, wait_seconds, head=head)
