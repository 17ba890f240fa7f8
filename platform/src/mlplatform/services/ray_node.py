"""Hooks of Ray nodes: `ray start` calls the function that RAY_START_HOOK names, before it starts the node."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from mlplatform.compat import ray_commands
from mlplatform.settings.environment import environment, set_environment
from mlplatform.settings.node import NodeSettings
from mlplatform.warm import client

_PYTHON = """#!{python} -IS
import sys
sys.path.insert(0, {root!r})
from mlplatform.warm.client import python
python()
"""


def prepare(parameters: Any, head: bool) -> None:
    """Prepare a node of the stack, whose head runs no jobs.

    Args:
        parameters: `ray._private.parameter.RayParams`.
        head: whether the node is the head.
    """
    ray_commands.replace_worker_setup(parameters)
    if not head:
        start_templates(Path(tempfile.gettempdir()) / "warm")


def prepare_local(parameters: Any, head: bool) -> None:
    """Prepare the only node of the embedded platform.

    Args:
        parameters: as of `prepare`.
        head: True.
    """
    ray_commands.replace_worker_setup(parameters)
    ray_commands.disable_client_server(parameters)
    start_templates(Path(parameters.temp_dir) / "warm")


def start_templates(folder: Path) -> None:
    """Start the base template, which ends with this process, and put its `python` first on the PATH of jobs.

    Args:
        folder: of the templates' sockets; it is emptied first.
    """
    if not NodeSettings.load().warm_start:
        return
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "bin").mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    _write_python(folder / "bin")
    set_environment(
        {
            client.SOCKETS: str(folder),
            client.REASON: str(folder / "starts.jsonl"),
            "PATH": f"{folder / 'bin'}:{environment().get('PATH', '')}",
        }
    )
    with (folder / "template.log").open("ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", "mlplatform.warm", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _write_python(folder: Path) -> None:
    """Write the `python` that jobs find first: a client of the template."""
    content = _PYTHON.format(python=sys.executable, root=str(Path(client.__file__).parents[2]))
    for name in ("python", "python3", f"python{sys.version_info.major}.{sys.version_info.minor}"):
        (folder / name).write_text(content)
        (folder / name).chmod(0o700)
