"""Memory of the processes on a node, read on the host: only root may read what other users' processes share."""

from __future__ import annotations

import re
from pathlib import Path

from host import run
from workbench import COLD, Bench, NotMeasuredError

MEMORY_WORKERS, QUICK_WORKERS = 8, 2
READY = "all workers are ready"
"""The line that `scripts/workers.py` prints."""

_PSS = re.compile(r"^Pss:\s+(\d+) kB", re.MULTILINE)

# Processes of the node itself, which are the same with warm and with cold workers.
_PROGRAMS_OF_NODE = ("raylet", "docker-init", "tini")
_TITLES_OF_NODE = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
_SCRIPTS_OF_NODE = re.compile(r"/bin/ray$|/log_monitor\.py$|/dashboard/agent\.py$|/runtime_env/agent/main\.py$")

_TEMPLATES = "mlplatform_warm"


def node_memory(bench: Bench, workers: int, is_cold: bool) -> float:
    """Start train workers on one node and return its memory in MB.

    A node without warm start has no templates, so those of the stack do not count beside cold workers. They still share
    the pages of libraries with them, which makes cold workers look a little smaller.
    """
    command = ["python", "-m", "scripts.workers", f"--workers={workers}"]
    job_id = bench.submit(command, "workers", COLD if is_cold else None)
    try:
        seen = []
        for line in bench.jobs.follow(job_id):
            if READY in line:
                break
            seen.append(line)
        else:
            raise NotMeasuredError(f"Job {job_id} ended before its workers were ready:\n" + "\n".join(seen[-30:]))
        return proportional_mb(bench.stack.container(bench.driver_node(job_id)), with_templates=not is_cold)
    finally:
        bench.jobs.stop(job_id)
        bench.jobs.wait(job_id, timeout_s=120)
        bench.remove_files(job_id)


def proportional_mb(container: str, with_templates: bool) -> float:
    """Memory of a container's processes except those of Ray's node, shared pages divided among their users (PSS).

    Raises:
        NotMeasuredError: this process may not read it.
    """
    kilobytes = 0
    for pid in run("docker", "top", container, "-eo", "pid").stdout.split()[1:]:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
            if is_of_node(words) or (_TEMPLATES in words and not with_templates):
                continue
            found = _PSS.search(Path(f"/proc/{pid}/smaps_rollup").read_text())
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        except PermissionError as error:
            message = f"Reading {error.filename} needs root on the Docker host: run it as root."
            raise NotMeasuredError(message) from error
        kilobytes += int(found[1]) if found else 0
    if not kilobytes:
        raise NotMeasuredError(f"The processes of {container} are not in this machine's /proc: run on the Docker host.")
    return kilobytes * 1024 / 1e6


def is_of_node(words: list[str]) -> bool:
    """Return whether a command line is that of Ray's node, which runs whether or not there are jobs."""
    named = Path(words[0]).name in _PROGRAMS_OF_NODE or words[0].startswith(_TITLES_OF_NODE)
    return named or any(map(_SCRIPTS_OF_NODE.search, words[:4]))
