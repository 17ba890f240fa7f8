"""Hooks of Ray nodes: `ray start` calls the function that RAY_START_HOOK names, before it starts the node."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from mlplatform.compat import ray_commands
from mlplatform.node import files as ray_files
from mlplatform.node import gpu_watch
from mlplatform.settings.environment import environment, set_environment
from mlplatform.settings.node import NodeSettings
from mlplatform_warm import client, notes

_SHEBANG_BYTES = 120

_PYTHON = """{shebang}
import sys
sys.path.insert(0, {root!r})
from mlplatform_warm.client import python
python()
"""


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
    gpu_watch.start()
    start_templates(folder / "warm", _STACK_START_SECONDS["head" if head else "worker"], head=head)


def prepare_local(parameters: Any, head: bool) -> None:
    """Prepare the only node of the embedded platform.

    Args:
        parameters: as of `prepare`.
        head: True.
    """
    ray_commands.prepare_node(parameters)
    ray_commands.disable_client_server(parameters)
    start_templates(Path(parameters.temp_dir) / "warm")


def remove_leftovers(sessions: Path) -> None:
    """Remove what former starts of the node have left, and start the process that removes old files once per hour."""
    ray_files.prepare_start(sessions)
    command = [sys.executable, "-m", ray_files.__name__, str(sessions)]
    subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def start_templates(folder: Path, wait_seconds: float = 0, *, head: bool = False) -> None:
    """Start the base template, which ends with this process, and put its `python` first on the PATH of jobs.

    Args:
        folder: of the templates' sockets and of the node's log of starts; it is emptied first.
        wait_seconds: time before it begins to import.
        head: import only what Ray's own actors need.
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
            notes.REASON: str(folder / "starts.jsonl"),
            "PATH": f"{folder / 'bin'}:{environment().get('PATH', '')}",
        }
    )
    with (folder / "template.log").open("ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", "mlplatform_warm", str(folder), str(wait_seconds), *(["head"] if head else [])],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _shebang(python: str) -> str:
    """Return the first lines of a Python file that the kernel starts by an interpreter, in isolated mode.

    Linux cuts the line at a space and after 127 bytes (255 since 5.1); then a shell starts it, to which Python's string
    of three quotes is a command.
    """
    if " " not in python and len(os.fsencode(python)) < _SHEBANG_BYTES:
        return f"#!{python} -IS"
    quoted = re.sub(r'(["\\$`])', r"\\\1", python)
    return f"""#!/bin/sh
'''exec' "{quoted}" -IS "$0" "$@"
' '''"""


def _write_python(folder: Path) -> None:
    """Write the `python` that jobs find first: a client of the template."""
    content = _PYTHON.format(shebang=_shebang(sys.executable), root=str(Path(client.__file__).parents[2]))
    for name in ("python", "python3", f"python{sys.version_info.major}.{sys.version_info.minor}"):
        (folder / name).write_text(content)
        (folder / name).chmod(0o700)
