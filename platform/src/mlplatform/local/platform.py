"""The embedded platform: Ray and MLflow as processes of one person on one machine, reachable from it alone."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx
import psutil

from mlplatform.client.jobs import Jobs
from mlplatform.compat import ray_commands
from mlplatform.contract import REPORT
from mlplatform.credentials import fernet_key
from mlplatform.errors import HostError
from mlplatform.files import atomic
from mlplatform.settings.environment import environment
from mlplatform.settings.job import Settings, settings

LOOPBACK = "127.0.0.1"

MARK = "MLPLATFORM_INSTANCE"
"""Variable that every process of an instance inherits; Ray's workers overwrite it with their titles."""

_START_SECONDS = 180.0

_STOP_SECONDS = 5.0

_OBJECT_STORE_BYTES = 500_000_000

_SOCKET_PATH_BYTES = 107
"""Longest path of a Unix socket on Linux."""

_RAY_SOCKET = f"/session_2000-01-01_00-00-00_000000_1234567/sockets/{'dash_MetricsHead':24}"
"""The deepest socket that Ray makes below its folder, and some more for those of later versions."""


@dataclass(frozen=True)
class Process:
    """A process that leads its own session; the time tells it from a later one with the same id."""

    pid: int
    created: float


@dataclass
class Instance:
    """What `up` has started, as it stands in `state.json`."""

    id: str
    ray_address: str
    tracking_uri: str
    ray_folder: str
    processes: list[Process] = field(default_factory=list)


class Local:
    """The embedded platform in one folder; several folders give several platforms side by side."""

    def __init__(self, home: Path | None = None) -> None:
        self.home = home or settings().home
        self._state = self.home / "state.json"
        self._token = self.home / "ray.token"

    def up(self) -> Settings:
        """Start what is not running, and wait until both answer.

        Returns:
            The settings that reach it.

        Raises:
            HostError: something did not start; the message names the log. What had started is stopped again.
        """
        with self._locked():
            instance = self._load()
            if instance and self._answers(instance):
                return self.settings(instance)
            self._stop(instance)
            try:
                instance = self._start()
                self._wait_until_up(instance)
            except BaseException:
                self._stop(self._load())
                raise
            return self.settings(instance)

    def down(self) -> bool:
        """Stop exactly what was started here; False when there was nothing."""
        with self._locked():
            instance = self._load()
            self._stop(instance)
            return instance is not None

    def status(self) -> Settings | None:
        """The settings that reach a running platform; None when it is down or half-dead."""
        instance = self._load()
        return self.settings(instance) if instance and self._answers(instance) else None

    def settings(self, instance: Instance) -> Settings:
        """What a job, a notebook or a shell needs to reach this instance."""
        return Settings.load(
            tracking_uri=instance.tracking_uri,
            ray_address=instance.ray_address,
            ray_auth_token_path=self._token,
            storage=str(self.home / "storage"),
            datasets=str(self.home / "datasets"),
            home=self.home,
            s3_endpoint=None,
            driver_label=None,
        )

    def _start(self) -> Instance:
        for folder in ("storage", "mlflow", "logs"):
            (self.home / folder).mkdir(parents=True, exist_ok=True)
        self._write_token()
        ray_port, mlflow_port = _free_ports(2)
        instance = Instance(
            id=secrets.token_hex(8),
            ray_address=f"http://{LOOPBACK}:{ray_port}",
            tracking_uri=f"http://{LOOPBACK}:{mlflow_port}",
            ray_folder=str(self._ray_folder()),
        )
        env = self._environment(instance)
        mlflow_env = {**env, **self._webhook_environment()}
        # Written before and after each start: its id finds the processes also when this one is killed in between.
        self._save(instance)
        for name, command, variables in (
            ("ray", _ray_command(instance, ray_port), env),
            ("mlflow", _mlflow_command(self.home / "mlflow", mlflow_port), mlflow_env),
        ):
            instance.processes.append(self._spawn(name, command, variables))
            self._save(instance)
        return instance

    def _webhook_environment(self) -> dict[str, str]:
        """What MLflow's process needs besides, to tell programs of this machine about promotions."""
        key = self.home / "mlflow" / "webhook.key"
        if not key.exists():
            key.touch(mode=0o600)
            fernet_key(key)
        return {
            # Kept, so that the webhooks' secrets can be read after a restart.
            "MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY": key.read_text(),
            # The receivers are on loopback too.
            "MLFLOW_WEBHOOK_ALLOWED_SCHEMES": "https,http",
            "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS": "true",
            "MLFLOW_WEBHOOK_CACHE_TTL": "1",
        }

    def _environment(self, instance: Instance) -> dict[str, str]:
        """The user's environment without what points to another platform, with what points to this one."""
        foreign = ("RAY_", "MLFLOW_", "MLPLATFORM_", "AWS_")
        env = {name: value for name, value in environment().items() if not name.startswith(foreign)}
        return {
            **env,
            **self.settings(instance).environment(),
            MARK: instance.id,
            "PATH": f"{Path(sys.executable).parent}:{env.get('PATH', os.defpath)}",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "RAY_USAGE_STATS_ENABLED": "0",
            # There is no other node that work could move to, so draining would only make `down` wait.
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
            # Ray replaces 127.0.0.1 by the machine's outward address, except where this says that no other
            # node will join, as it does by default on a Mac; then all its servers bind to loopback.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            ray_commands.START_HOOK: "mlplatform.compat.ray_commands.leave_client_server_out",
            # Two fixed ports by default, which a second platform could not open.
            "AUTOSCALER_METRIC_PORT": "0",
            "DASHBOARD_METRIC_PORT": "0",
            # Nothing takes this machine away, so a process that watches for it only costs a start.
            "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
            # Ray 2.60 takes its own replacement of a worker's stdout for somebody else's and prints each line twice.
            "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
            # Ray drops lines of several processes that differ in numbers alone. Not reports; the rest is its default.
            "RAY_DEDUP_LOGS_ALLOW_REGEX": f"{REPORT}|__ray_testing_never_deduplicate__",
        }

    def _spawn(self, name: str, command: Sequence[str], env: dict[str, str]) -> Process:
        with (self.home / "logs" / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                command,
                env=env,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return Process(child.pid, psutil.Process(child.pid).create_time())

    def _wait_until_up(self, instance: Instance) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers(instance):
            for name, process in zip(("ray", "mlflow"), instance.processes, strict=True):
                if not _is_alive(process):
                    raise HostError(f"{name} did not start; its log is {self.home / 'logs' / f'{name}.log'}.")
            if time.monotonic() > deadline:
                raise HostError(f"Ray and MLflow do not answer after {_START_SECONDS:.0f} s; see {self.home / 'logs'}.")
            time.sleep(0.2)

    def _answers(self, instance: Instance) -> bool:
        if not all(_is_alive(process) for process in instance.processes):
            return False
        with Jobs(self.settings(instance)) as jobs:
            return _is_healthy(f"{instance.tracking_uri}/health") and jobs.is_up()

    def _stop(self, instance: Instance | None) -> None:
        if instance is None:
            return
        _end(_members(instance), instance)
        with suppress(FileNotFoundError):
            shutil.rmtree(instance.ray_folder)
        self._state.unlink(missing_ok=True)

    def _write_token(self) -> None:
        if self._token.is_file():
            return
        descriptor = os.open(self._token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))

    def _ray_folder(self) -> Path:
        """Ray's folder for logs and sockets: in the home, or in the system's temporary folder if that is too deep."""
        inside = self.home / "ray"
        if len(str(inside) + _RAY_SOCKET) <= _SOCKET_PATH_BYTES:
            return inside
        digest = hashlib.sha256(str(self.home).encode()).hexdigest()[:8]
        return Path(tempfile.gettempdir()) / f"mlplatform-{os.getuid()}-{digest}"

    def _load(self) -> Instance | None:
        try:
            state = json.loads(self._state.read_text())
            processes = [Process(**process) for process in state.pop("processes")]
            return Instance(**state, processes=processes)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise HostError(
                f"{self._state} is damaged ({error}); remove it, and end what `ps` shows with {self.home}."
            ) from error

    def _save(self, instance: Instance) -> None:
        with atomic.new_file(self._state) as draft:
            draft.write_text(json.dumps(asdict(instance), indent=2))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One `up` or `down` at a time in a folder."""
        try:
            self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = (self.home / "lock").open("w")
        except OSError as error:
            raise HostError(
                f"The folder {self.home} cannot be written ({error.strerror}); make it so or set MLPLATFORM_HOME."
            ) from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _ray_command(instance: Instance, port: int) -> list[str]:
    return [
        *(*ray_commands.START, "--head", "--block", "--disable-usage-stats"),
        *(f"--node-ip-address={LOOPBACK}", "--port=0", f"--temp-dir={instance.ray_folder}"),
        *(f"--dashboard-host={LOOPBACK}", f"--dashboard-port={port}", "--dashboard-agent-listen-port=0"),
        *("--min-worker-port=0", "--max-worker-port=0"),
        # Enough for two training workers, their driver and one more, also on a small machine.
        f"--num-cpus={max(4, os.cpu_count() or 1)}",
        f"--object-store-memory={_OBJECT_STORE_BYTES}",
    ]


def _mlflow_command(folder: Path, port: int) -> list[str]:
    return [
        *(sys.executable, "-m", "mlflow", "server", f"--host={LOOPBACK}", f"--port={port}", "--workers=1"),
        f"--backend-store-uri=sqlite:///{folder / 'mlflow.db'}",
        f"--artifacts-destination={folder / 'artifacts'}",
    ]


def _free_ports(count: int) -> list[int]:
    """Ports that are free now, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for listener in sockets:
            listener.bind((LOOPBACK, 0))
        return [listener.getsockname()[1] for listener in sockets]
    finally:
        for listener in sockets:
            listener.close()


def _is_healthy(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.TransportError:
        return False


def _is_alive(process: Process) -> bool:
    try:
        found = psutil.Process(process.pid)
        return bool(found.create_time() == process.created) and is_running(found)
    except psutil.NoSuchProcess:
        return False


def _members(instance: Instance) -> list[psutil.Process]:
    """Every process of an instance: in a session it leads, below one of those, or carrying its mark.

    None of the three finds all: Ray's workers overwrite their environment, drivers lead sessions of their own, and
    children of a killed parent are nobody's.
    """
    sessions = {process.pid for process in instance.processes if not _is_reused(process)}
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError, PermissionError):
            if os.getsid(process.pid) in sessions or process.environ().get(MARK) == instance.id:
                found[process.pid] = process
                found.update({child.pid: child for child in process.children(recursive=True)})
    found.pop(os.getpid(), None)
    return [process for process in found.values() if is_running(process)]


def is_running(process: psutil.Process) -> bool:
    """Whether a process has not ended; one that its parent has yet to collect (a zombie) has."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE) and bool(process.is_running())
    except psutil.NoSuchProcess:
        return False


def _is_reused(process: Process) -> bool:
    """Whether the id now belongs to another process; it cannot while a member of its session is left."""
    try:
        return bool(psutil.Process(process.pid).create_time() != process.created)
    except psutil.NoSuchProcess:
        return False


def _end(processes: list[psutil.Process], instance: Instance) -> None:
    """SIGTERM for all, SIGKILL for what is left after a while, also for what was started meanwhile."""
    _signal(processes, signal.SIGTERM)
    psutil.wait_procs(processes, timeout=_STOP_SECONDS)
    deadline = time.monotonic() + _STOP_SECONDS
    while (left := _members(instance)) and time.monotonic() < deadline:
        _signal(left, signal.SIGKILL)
        psutil.wait_procs(left, timeout=1)


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
