"""Hooks and parts of Ray's command line that have no public interface; seen in Ray 2.60.0."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mlplatform.compat import ray_dashboard_agent, ray_runtime_env_agent, ray_setup_worker
from mlplatform.compat.patches import around

START = (sys.executable, "-m", "ray.scripts.scripts", "start")
"""`ray start` of the same interpreter; the script `ray` may not be on PATH, and `python -m ray` does not exist."""

START_HOOK = "RAY_START_HOOK"
"""Variable that names a function which `ray start` calls with its parameters (`ray._private.ray_constants`)."""


def prepare_node(parameters: Any) -> None:
    """Let this process, `ray start`, start its node's workers with `ray_setup_worker`, and end with its raylet.

    Args:
        parameters: `ray._private.parameter.RayParams`, with the ports of both agents set.
    """
    parameters.setup_worker_path = ray_setup_worker.__file__
    change_raylet(parameters.dashboard_agent_listen_port)
    end_with_raylet()


def disable_client_server(parameters: Any) -> None:
    """Start a node without the server for `ray://` addresses, which no option of `ray start` disables."""
    parameters.ray_client_server_port = None


def change_raylet(agent_port: int) -> None:
    """Let this process, `ray start`, pass a port to its raylet, and our main files of its two agents.

    A raylet reads the ports of its agents from files, and aborts if one is missing after 15 s (a literal in Ray's C++
    code): a node did not start beside 14 busy processes on 2 cores. It does not read a port that its command line has.
    Ray passes all but one of those that `ray start` is given. The command line also has those of the agents.
    """
    from ray._private import ray_constants, services

    ours = {
        str(ray_runtime_env_agent.private("runtime_env/agent/main.py")): ray_runtime_env_agent.__file__,
        ray_dashboard_agent.original(): ray_dashboard_agent.__file__,
    }

    @around(services, "start_ray_process")
    def start_process(start: Any, command: list[str], process_type: str, *arguments: Any, **options: Any) -> Any:
        if process_type == ray_constants.PROCESS_TYPE_RAYLET:
            for file, replacement in ours.items():
                command = [part.replace(file, replacement) for part in command]
            command.append(f"--dashboard_agent_listen_port={agent_port}")
        return start(command, process_type, *arguments, **options)


def end_with_raylet() -> None:
    """Let this process, `ray start --block`, fail when its raylet ends, whatever the raylet's exit code.

    If one of its agents fails, a raylet exits with 0, which Ray takes for the effect of `ray stop`: `ray start` would
    block without a node until somebody restarts it.
    """
    from ray._private import ray_constants
    from ray._private.node import Node

    @around(Node, "dead_processes")
    def dead_or_failed(dead_processes: Any, self: Any) -> list[tuple[str, Any]]:
        ended: list[tuple[str, Any]] = dead_processes(self)
        for process_type, process in ended:
            if process_type == ray_constants.PROCESS_TYPE_RAYLET:
                process.returncode = 1
        return ended


def write_dashboards(folder: Path) -> list[Path]:
    """Write Ray's Grafana dashboards, one JSON file each, and return the files.

    Ray writes them itself, but only on a running head, with its own address for Prometheus.
    """
    from ray.dashboard.modules.metrics import grafana_dashboard_factory as factory

    files = []
    for name in ("default", "train", "data", "serve", "serve_deployment"):
        content, _uid = getattr(factory, f"generate_{name}_grafana_dashboard")()
        path = folder / f"ray-{name.replace('default', 'core').replace('_', '-')}.json"
        path.write_text(content)
        files.append(path)
    return files
