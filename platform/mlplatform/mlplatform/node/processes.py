"""Processes of jobs on this node, by their environment."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from mlplatform_warm.ray.setup_worker import CONTEXT


def of_job(job_id: str, attempt: int) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the processes of an attempt on this node with their variables, in no order.

    Forks of a template of warm start have the environment of that, but for each there is also a process of the attempt.
    """
    wanted = {("MLPLATFORM_JOB_ID", job_id), ("MLPLATFORM_ATTEMPT", str(attempt))}
    for process in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        # It may end meanwhile, and a command line is anybody's text.
        with suppress(OSError, ValueError, TypeError, AttributeError):
            if wanted <= (found := _variables(process)).items():
                yield process, found


def _variables(process: int) -> dict[str, str]:
    """Return the variables of a process, with those that a worker of Ray takes from its command line.

    Raises:
        OSError: it has ended, or belongs to another user.
        ValueError, TypeError, AttributeError: its command line only resembles that of a worker.
    """
    found = dict(variable.split("=", 1) for variable in _read(process, "environ") if "=" in variable)
    context = next((word.removeprefix(CONTEXT) for word in _read(process, "cmdline") if word.startswith(CONTEXT)), "{}")
    for name, value in (json.loads(context).get("env_vars") or {}).items():
        found[name] = re.sub(r"\$\{([A-Z0-9_]+)\}", lambda match: found.get(match[1], ""), value)
    return found


def ticks(process: int) -> tuple[int, int]:
    """Return the time at which a process was started, and its CPU time, both in ticks of the kernel's clock.

    Raises:
        OSError: it has ended.
    """
    fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
    return int(fields[19]), int(fields[11]) + int(fields[12])


def _read(process: int, name: str) -> list[str]:
    return Path(f"/proc/{process}/{name}").read_bytes().decode(errors="surrogateescape").split("\0")
