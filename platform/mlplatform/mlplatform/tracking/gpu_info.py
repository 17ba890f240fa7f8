"""Report on this node's GPUs, from the vendors' own tools."""

from __future__ import annotations

import shutil
import socket
import subprocess

_TOOLS = ("nvidia-smi", "rocm-smi")

_SECONDS = 30
"""Timeout of a tool: the first nvidia-smi on a node without persistence mode took more than ten seconds."""


def describe() -> str:
    """Return the report of `nvidia-smi` or `rocm-smi`; one sentence if there is no GPU."""
    for tool in _TOOLS:
        if report := _output(tool):
            return report
    return f"Node {socket.gethostname()} has no GPU that nvidia-smi or rocm-smi reports.\n"


def _output(tool: str) -> str | None:
    program = shutil.which(tool)
    if program is None:
        return None
    try:
        done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 and done.stdout.strip() else None
