"""Commands and environments of the programs of the embedded platform: Ray, MLflow, gateway, log shipper."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx

from mlplatform.compat import mlflow_server, ray_commands
from mlplatform.contract import REPORT
from mlplatform.local.instance import Home, Instance
from mlplatform.local.processes import LOOPBACK, MARK, Process, free_ports, spawn
from mlplatform.secrets import secret_folder
from mlplatform.secrets.credentials import fernet_key
from mlplatform.settings.environment import environment
from mlplatform.settings.job import NodeSettings
from mlplatform.settings.services import OfGateway
from mlplatform_warm import client

_OBJECT_STORE_BYTES = 500_000_000

_NO_SETTINGS = dict.fromkeys(OfGateway.variables(), "")
"""Settings of a stack have names that shells export for other programs; here they are empty, so that defaults apply."""


def start(name: str, home: Home, instance: Instance) -> Process:
    """Start one of `PROGRAMS`."""
    command, variables = PROGRAMS[name](home, instance)
    return spawn(name, command, {**common_environment(home, instance), **variables}, home.path)


def common_environment(home: Home, instance: Instance) -> dict[str, str]:
    """Return the user's environment without the variables of another platform, and with those of this one."""
    foreign = ("RAY_", "MLFLOW_", "MLPLATFORM_", "AWS_")
    env = {name: value for name, value in environment().items() if not name.startswith(foreign)}
    return {
        **env,
        **home.settings(instance).environment(),
        MARK: instance.id,
        client.SWITCH: str(int(NodeSettings.load().warm_start)),
        # For files with predictable names, such as Ray Train's checkpoints of Lightning.
        "TMPDIR": str(temporary_folder(Path(instance.ray_folder))),
        "PATH": f"{Path(sys.executable).parent}:{env.get('PATH', os.defpath)}",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_ENABLE_AI_GATEWAY": "false",
        "RAY_USAGE_STATS_ENABLED": "0",
        # There is no other node that work could move to, so draining would only delay `down`.
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        # Ray replaces 127.0.0.1 with the machine's external address, unless this variable states that no other node
        # will join, which is the default on a Mac; then all its servers bind to loopback.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        # Ray would start one worker per CPU for each job, whether the job needs them or not.
        "RAY_prestart_worker_first_driver": "0",
        ray_commands.START_HOOK: "mlplatform.node.start.prepare_local",
        # Ray waits 30 s for its control store, which is short on a busy machine.
        "RAY_gcs_server_port_wait_time_s": "120",
        # Two fixed ports by default, which a second platform could not open.
        "AUTOSCALER_METRIC_PORT": "0",
        "DASHBOARD_METRIC_PORT": "0",
        # The gateway decides how long a job waits to start; Ray would fail it after 15 minutes.
        "RAY_JOB_START_TIMEOUT_SECONDS": "31536000",
        # Nothing removes this machine while it runs, so a process that watches for that would only slow down the start.
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
        # Ray Train learns of its workers' reports, failures and end only by asking for them, every 2 s by default.
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
        # With `reuse_actors`, the next trial waits for the end of a stopped one, and Ray fails it after 2 s.
        "TUNE_FUNCTION_THREAD_TIMEOUT_S": "3600",
        # Ray 2.60 mistakes its own replacement of a worker's stdout for a foreign one and prints each line twice.
        "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
        # Ray drops lines of several processes that differ only in numbers. Exempt reports; the rest is Ray's default.
        "RAY_DEDUP_LOGS_ALLOW_REGEX": f"{REPORT}|__ray_testing_never_deduplicate__",
    }


def temporary_folder(ray_folder: Path) -> Path:
    """Return the folder for temporary files of all programs and jobs, which is removed with Ray's."""
    return ray_folder / "tmp"


def _ray(home: Home, instance: Instance) -> tuple[list[str], dict[str, str]]:
    grpc_port, environment_port, metrics_port = free_ports(3, instance.ports)
    command = [
        *(*ray_commands.START, "--head", "--block", "--disable-usage-stats"),
        *(f"--node-ip-address={LOOPBACK}", "--port=0", f"--temp-dir={instance.ray_folder}"),
        *(f"--dashboard-host={LOOPBACK}", f"--dashboard-port={instance.dashboard_port}"),
        *(f"--dashboard-agent-listen-port={instance.agent_port}", "--min-worker-port=0", "--max-worker-port=0"),
        *(f"--dashboard-agent-grpc-port={grpc_port}", f"--runtime-env-agent-port={environment_port}"),
        f"--metrics-export-port={metrics_port}",
        # Enough for two training workers, their driver and one more, also on a small machine.
        f"--num-cpus={max(4, os.cpu_count() or 1)}",
        f"--object-store-memory={_OBJECT_STORE_BYTES}",
    ]
    return command, {secret_folder.GATEWAY: instance.ray_address, "RAY_AUTH_TOKEN_PATH": str(home.cluster_token)}


def _mlflow(home: Home, instance: Instance) -> tuple[list[str], dict[str, str]]:
    folder, port = home.path / "mlflow", httpx.URL(instance.tracking_uri).port
    key = folder / "webhook.key"
    if not key.exists():
        key.touch(mode=0o600)
        fernet_key(key)
    command = [
        *(*mlflow_server.SERVE, "--app-name=mlplatform-local"),
        *(f"--host={LOOPBACK}", "--workers=1"),
        f"--port={port}",
        f"--backend-store-uri=sqlite:///{folder / 'mlflow.db'}",
        f"--artifacts-destination={folder / 'artifacts'}",
    ]
    return command, {
        # A variable, not an option, because MLflow reads it while it is imported, too.
        "MLFLOW_SERVER_ALLOWED_HOSTS": f"{LOOPBACK}:{port},localhost:{port}",
        # Kept, so that the webhooks' secrets can be read after a restart.
        "MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY": key.read_text(),
        # The receivers are on loopback too.
        "MLFLOW_WEBHOOK_ALLOWED_SCHEMES": "https,http",
        "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS": "true",
        "MLFLOW_WEBHOOK_CACHE_TTL": "1",
    }


def _gateway(home: Home, instance: Instance) -> tuple[list[str], dict[str, str]]:
    folder = home.path / "gateway"
    (folder / "files").mkdir(parents=True, exist_ok=True)
    return [sys.executable, "-m", "mlplatform_gateway"], {
        **_NO_SETTINGS,
        "MLPLATFORM_GATEWAY_LISTEN": LOOPBACK,
        "MLPLATFORM_GATEWAY_PORT": str(httpx.URL(instance.ray_address).port),
        "MLPLATFORM_GATEWAY": instance.ray_address,
        "MLPLATFORM_CLUSTER_TOKEN_PATH": str(home.cluster_token),
        "MLPLATFORM_GATEWAY_HEAD": instance.dashboard_address,
        "MLPLATFORM_GATEWAY_HEAD_AGENT": f"http://{LOOPBACK}:{instance.agent_port}",
        "MLPLATFORM_GATEWAY_DATABASE": f"sqlite:///{folder / 'gateway.db'}",
        "MLPLATFORM_GATEWAY_STORE": str(folder / "files"),
    }


def _log_shipper(home: Home, instance: Instance) -> tuple[list[str], dict[str, str]]:
    """Return the log shipper's command; its folder of nodes gets one link, named as Ray names the machine."""
    nodes = home.path / "nodes"
    nodes.mkdir(exist_ok=True)
    link = nodes / socket.gethostname()
    for old in nodes.iterdir():
        if old != link:
            old.unlink()
    link.unlink(missing_ok=True)
    link.symlink_to(instance.ray_folder)
    return [sys.executable, "-m", "mlplatform_gateway.logs.shipper"], {
        **_NO_SETTINGS,
        "MLPLATFORM_GATEWAY": instance.ray_address,
        "MLPLATFORM_NODE_LOGS": str(nodes),
    }


PROGRAMS: Mapping[str, Callable[[Home, Instance], tuple[list[str], dict[str, str]]]] = {
    "ray": _ray,
    "mlflow": _mlflow,
    "gateway": _gateway,
    "log-shipper": _log_shipper,
}
"""Command and additional variables of each program, in the order of their start."""
