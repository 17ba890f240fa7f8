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
        assign(workers, await asyncio.to_thread(meter.read))
        return workers


class Meter:
    """Measures the processes of this node."""

    def __init__(self) -> None:
        self._shared: dict[Any, tuple[float, int]] = {}
        """For each process, a time on the monotonic clock, and the bytes that others use of its resident ones."""

    def read(self) -> dict[int, dict[str, Any]]:
        """Return parent (`ppid`), `environ`, `cpu_percent` and `memory` of each process, by its id; None: not readable.

        A page that n processes share counts as 1/n (PSS), because forks of warm start share most of theirs. The kernel
        takes up to 0.1 s per process to sum that up, so the shared part is read once a minute.
        """
        import psutil

        before, self._shared = self._shared, {}
        found = {}
        # It keeps its objects, without which `cpu_percent` has nothing to compare with.
        for process in psutil.process_iter(["ppid", "environ", "cpu_percent", "memory_info"]):
            # None for one that has just ended.
            now, resident = time.monotonic(), getattr(process.info.pop("memory_info"), "rss", 0)
            known = before.get(process)
            with suppress(psutil.Error):
                if known is None or now - known[0] > _SHARED_SECONDS:
                    known = now, resident - process.memory_full_info().pss
            self._shared[process] = known or (now, 0)
            found[process.pid] = {**process.info, "memory": max(0, resident - self._shared[process][1])}
        return found


def assign(workers: Iterable[dict[str, Any]], found: Mapping[int, Mapping[str, Any]]) -> None:
    """Add what processes use to the worker that has started them, or else to that of their job's entry point.

    With warm start, a program belongs to a template's processes, and has the variables that its job's shell has.

    Args:
        workers: as Ray's agent describes them.
        found: as `Meter.read` returns it.
    """
    known = {worker["pid"]: worker for worker in workers}
    attempts = {pid: attempt for pid in found.keys() - known.keys() if all(attempt := _attempt(found[pid]))}
    entry_points = {
        attempt: known[parent]
        for pid, attempt in attempts.items()
        if known.get(parent := found[pid]["ppid"], {}).get("cmdline", [""])[:1] == [_ENTRY_POINTS]
    }
    memory = dict.fromkeys(known, 0)
    for pid, process in found.items():
        worker = known.get(pid) or entry_points.get(attempts.get(pid, ())) or _started(pid, known, found)
        if worker:
            memory[worker["pid"]] += process["memory"]
            worker["cpu_percent"] += 0 if pid in known else process["cpu_percent"] or 0
    for pid, worker in known.items():
        worker["memory_info"] = worker["memory_info"]._replace(rss=memory[pid])


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
