"""Warm start on a node of Ray: `RAY_START_HOOK=mlplatform_warm.ray.node.prepare ray start ...`; seen in Ray 2.60.0."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from mlplatform_warm import client, notes
from mlplatform_warm.ray import setup_worker

_SHEBANG_BYTES = 120

_PYTHON = """{shebang}
import sys
sys.path.insert(0, {root!r})
from mlplatform_warm.client import python
python()
"""


def prepare(parameters: Any, head: bool) -> None:
    """Let this process, `ray start`, start a node on which drivers and workers are forked from templates.

    Args:
        parameters: `ray._private.parameter.RayParams`.
        head: whether the node is the head, which makes no difference: it may run jobs, too.
    """
    parameters.setup_worker_path = setup_worker.__file__
    start_templates(Path(parameters.temp_dir or tempfile.gettempdir()) / f"warm-{os.getuid()}")


def start_templates(folder: Path, wait_seconds: float = 0, *, head: bool = False) -> None:
    """Start the base template, which ends with this process, and put its `python` first on the PATH of jobs.

    Args:
        folder: of the templates' sockets and of the node's log of starts; it is emptied first.
        wait_seconds: time before it begins to import.
        head: import only what Ray's own actors need.
    """
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "bin").mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    write_python(folder / "bin")
    os.environ[client.SOCKETS] = str(folder)
    os.environ[notes.REASON] = str(folder / "starts.jsonl")
    os.environ["PATH"] = f"{folder / 'bin'}:{os.environ.get('PATH', '')}"
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


def write_python(folder: Path) -> None:
    """Write the `python` that jobs find first: a client of the templates.

    Args:
        folder: of programs; that of a virtual environment, whose Python it replaces, adds to the template's packages.
    """
    content = _PYTHON.format(shebang=_shebang(sys.executable), root=str(Path(client.__file__).parents[1]))
    for name in ("python", "python3", f"python{sys.version_info.major}.{sys.version_info.minor}"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_text(content)
        (folder / name).chmod(0o755)
