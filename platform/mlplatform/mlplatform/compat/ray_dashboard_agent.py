"""Replacement of the main file of the agent of Ray's dashboard, one per node; seen in Ray 2.60.0.

It adds a route that hands its connection to a process of ours, `mlplatform.node.ssh`. As all of the agent's routes, it
takes the cluster's token and no browser's request. And Ray measures its own workers only: what other processes of jobs
use is added to them. `ray_commands.change_raylet` installs this file.
"""

from __future__ import annotations

import asyncio
import runpy
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

# As a script, this file's folder is first on the path, and some of its modules are named like packages.
if __name__ == "__main__":
    del sys.path[0]

from mlplatform.compat.patches import around
from mlplatform.contract import SSH

_PROGRAM = "mlplatform.node.ssh"

_ENTRY_POINTS = "ray::JobSupervisor"
"""Title of the worker that runs the entry point of a job."""


def original() -> str:
    """Return Ray's file."""
    import ray

    return str(Path(ray.__file__).parent / "dashboard" / "agent.py")


def route() -> type:
    """Return the class with the route; the agent that this process becomes finds it as long as something holds it."""
    from aiohttp import web
    from ray.dashboard.optional_utils import DashboardAgentRouteTable
    from ray.dashboard.utils import DashboardAgentModule

    class SshModule(DashboardAgentModule):  # type: ignore[misc]
        """Ray finds the subclasses of its modules' class."""

        async def run(self, server: Any) -> None:
            """Nothing runs in the background."""

        @staticmethod
        def is_minimal_module() -> bool:
            """It needs aiohttp."""
            return False

        @DashboardAgentRouteTable.get(SSH)  # type: ignore[untyped-decorator]
        async def connect(self, request: web.Request) -> web.Response:
            """Hand the connection to a process, which answers."""
            assert request.transport  # noqa: S101 - the client is still connected
            request.transport.pause_reading()
            process = await asyncio.create_subprocess_exec(
                *(
                    sys.executable,
                    "-m",
                    _PROGRAM,
                    *(request.query[name] for name in ("job", "attempt", "key", "pid", "gpus")),
                ),
                stdin=request.transport.get_extra_info("socket").fileno(),
                stdout=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
            self._waiting = {task for task in getattr(self, "_waiting", set()) if not task.done()}
            self._waiting.add(asyncio.create_task(process.wait()))
            request.transport.abort()  # closes this process's copy only
            return web.Response()

    return SshModule


def measure_all() -> None:
    """Let the agent measure all processes of jobs, every 5 s as its workers."""
    import psutil
    from ray.dashboard.modules.reporter.reporter_agent import ReporterAgent

    @around(ReporterAgent, "_async_get_workers_and_agents")
    async def measured(original: Any, *arguments: Any) -> list[dict[str, Any]]:
        workers: list[dict[str, Any]] = await original(*arguments)
        # It keeps its objects, without which `cpu_percent` has nothing to compare with.
        found = psutil.process_iter(["ppid", "cpu_percent", "memory_info", "environ"])
        add_others(workers, {process.pid: process.info for process in found})
        return workers


def add_others(workers: Iterable[dict[str, Any]], found: Mapping[int, Mapping[str, Any]]) -> None:
    """Add what other processes use to the worker that has started them, or else to that of their job's entry point.

    With warm start, a program belongs to a template's processes, and has the variables that its job's shell has.

    Args:
        workers: as Ray's agent describes them.
        found: parent, use and variables of the processes of this node, by their id; None for what is not readable.
    """
    known = {worker["pid"]: worker for worker in workers}
    others = found.keys() - known.keys()
    attempts = {pid: attempt for pid in others if all(attempt := _attempt(found[pid]["environ"] or {}))}
    entry_points = {
        attempt: known[parent]
        for pid, attempt in attempts.items()
        if known.get(parent := found[pid]["ppid"], {}).get("cmdline", [""])[:1] == [_ENTRY_POINTS]
    }
    for pid in others:
        parent = pid
        while parent in found and parent not in known:
            parent = found[parent]["ppid"]
        worker = entry_points.get(attempts.get(pid, ())) or known.get(parent)
        if worker and found[pid]["memory_info"]:
            worker["cpu_percent"] += found[pid]["cpu_percent"] or 0
            memory = worker["memory_info"]
            worker["memory_info"] = memory._replace(rss=memory.rss + found[pid]["memory_info"].rss)


def _attempt(variables: Mapping[str, str]) -> tuple[str | None, ...]:
    """Return job and attempt of a process."""
    return tuple(variables.get(name) for name in ("MLPLATFORM_JOB_ID", "MLPLATFORM_ATTEMPT"))


if __name__ == "__main__":
    held = route()
    measure_all()
    runpy.run_path(original(), run_name="__main__")
