"""Replacement of the main file of the agent of Ray's dashboard, one per node; seen in Ray 2.60.0.

It adds a route that hands its connection to a process of ours, `mlplatform.node.ssh`. As all of the agent's routes, it
takes the cluster's token and no browser's request. And Ray measures its own workers only: what other processes of jobs
use is added to them. `ray_commands.change_raylet` installs this file.
"""

from __future__ import annotations

import asyncio
import runpy
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
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

_SHARED_SECONDS = 60.0


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
    from ray.dashboard.modules.reporter.reporter_agent import ReporterAgent

    meter = Meter()

    @around(ReporterAgent, "_async_get_workers_and_agents")
    async def measured(original: Any, *arguments: Any) -> list[dict[str, Any]]:
        workers: list[dict[str, Any]] = await original(*arguments)
        await asyncio.to_thread(meter.add_all, workers)
        return workers


class Meter:
    """Measures the processes of jobs on this node."""

    def __init__(self) -> None:
        self._shared: dict[Any, tuple[float, int]] = {}
        """For each process, a time on the monotonic clock, and the bytes that others use of its resident ones."""

    def add_all(self, workers: Iterable[dict[str, Any]]) -> None:
        """Change use and memory of workers, as Ray's agent describes them, to those of all their processes.

        A page that n processes share counts as 1/n (PSS), because forks of warm start share most of theirs. The kernel
        takes up to 0.1 s per process to sum that up, so the shared part is read once a minute.
        """
        import psutil

        known = {worker["pid"]: worker for worker in workers}
        # It keeps its objects, without which `cpu_percent` has nothing to compare with.
        found = {each.pid: each for each in psutil.process_iter(["ppid", "environ", "cpu_percent", "memory_info"])}
        before, self._shared = self._shared, {}
        memory = dict.fromkeys(known, 0)
        for pid, worker in owners(known, {pid: process.info for pid, process in found.items()}).items():
            process, info, now = found[pid], found[pid].info, time.monotonic()
            # None for a process that has just ended.
            resident, shared = getattr(info["memory_info"], "rss", 0), before.get(process)
            with suppress(psutil.Error):
                if shared is None or now - shared[0] > _SHARED_SECONDS:
                    shared = now, resident - process.memory_full_info().pss
            self._shared[process] = shared or (now, 0)
            memory[worker["pid"]] += max(0, resident - self._shared[process][1])
            worker["cpu_percent"] += 0 if pid in known else info["cpu_percent"] or 0
        for pid, worker in known.items():
            worker["memory_info"] = worker["memory_info"]._replace(rss=memory[pid])


def owners(known: Mapping[int, dict[str, Any]], found: Mapping[int, Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return the worker for which each process counts: it has started it, or runs the entry point of its job.

    With warm start, a program belongs to a template's processes, and has the variables that its job's shell has.

    Args:
        known: the workers by the id of their process.
        found: parent (`ppid`) and `environ` of all processes by their id; None: not readable.
    """
    attempts = {pid: attempt for pid in found.keys() - known.keys() if all(attempt := _attempt(found[pid]))}
    entry_points = {
        attempt: known[parent]
        for pid, attempt in attempts.items()
        if known.get(parent := found[pid]["ppid"], {}).get("cmdline", [""])[:1] == [_ENTRY_POINTS]
    }
    owner = {}
    for pid in found:
        if worker := known.get(pid) or entry_points.get(attempts.get(pid, ())) or _started(pid, known, found):
            owner[pid] = worker
    return owner


def _attempt(process: Mapping[str, Any]) -> tuple[str | None, ...]:
    """Return job and attempt of a process."""
    return tuple((process["environ"] or {}).get(name) for name in ("MLPLATFORM_JOB_ID", "MLPLATFORM_ATTEMPT"))


def _started(pid: int, known: Mapping[int, dict[str, Any]], found: Mapping[int, Any]) -> dict[str, Any] | None:
    """Return the worker from which a process descends."""
    while pid in found and pid not in known:
        pid = found[pid]["ppid"]
    return known.get(pid)


if __name__ == "__main__":
    held = route()
    measure_all()
    runpy.run_path(original(), run_name="__main__")
