"""Replacement of the main file of the agent of Ray's dashboard, one per node; seen in Ray 2.60.0.

It adds a route that hands its connection to a process of ours, `mlplatform.node.ssh`. As all of the agent's routes, it
takes the cluster's token and no browser's request. `ray_commands.change_raylet` installs this file.
"""

from __future__ import annotations

import asyncio
import runpy
import sys
from pathlib import Path
from typing import Any

# As a script, this file's folder is first on the path, and some of its modules are named like packages.
if __name__ == "__main__":
    del sys.path[0]

from mlplatform.contract import SSH

_PROGRAM = "mlplatform.node.ssh"


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


if __name__ == "__main__":
    held = route()
    runpy.run_path(original(), run_name="__main__")
