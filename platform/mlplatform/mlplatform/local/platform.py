"""The embedded platform: Ray, MLflow and the gateway as processes of one user on one machine, on loopback only."""

from __future__ import annotations

import fcntl
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from mlplatform.client.jobs import Jobs
from mlplatform.errors import HostError
from mlplatform.files import atomic
from mlplatform.local import processes, programs, supervisor
from mlplatform.local.instance import Home, Instance, make_private
from mlplatform.local.processes import LOOPBACK, is_alive, spawn
from mlplatform.settings.job import Settings, settings

_START_SECONDS = 180.0

_RECOVER_SECONDS = 60.0


class LocalPlatform:
    """The embedded platform in one folder; several folders hold independent platforms."""

    def __init__(self, home: Path | None = None) -> None:
        self.home = home or settings().home
        self._files = Home(self.home)

    def up(self) -> Settings:
        """Start the platform unless it is running, and wait until Ray, MLflow and the gateway answer.

        Jobs that were open at the last `down` are started again, from their last checkpoint if they have one.

        Returns:
            The settings to connect to it with.

        Raises:
            HostError: something did not start; the message names the log. Everything that had started is stopped.
        """
        with self._locked():
            instance = self._files.load()
            if instance and self._recovers(instance):
                return self._files.settings(instance)
            self._stop(instance)
            try:
                instance = self._start()
                self._wait_until_up(instance)
                instance = self._supervise(instance)
            except BaseException:
                self._stop(self._files.load())
                raise
            return self._files.settings(instance)

    def down(self) -> bool:
        """Stop exactly what was started here; return False if there was nothing."""
        with self._locked():
            instance = self._files.load()
            self._stop(instance)
            return instance is not None

    def status(self) -> Settings | None:
        """Return the settings to connect to a running platform with; None while any part of it does not answer."""
        instance = self._files.load()
        return self._files.settings(instance) if instance and self._answers(instance) else None

    def _start(self) -> Instance:
        for folder in ("storage", "mlflow", "logs"):
            (self.home / folder).mkdir(parents=True, exist_ok=True)
        self._write_secrets()
        ray_folder = self._files.ray_folder()
        programs.temporary_folder(ray_folder).mkdir(parents=True, exist_ok=True)
        gateway_port, mlflow_port, dashboard_port, agent_port = processes.free_ports(4)
        instance = Instance(
            id=secrets.token_hex(8),
            ray_address=f"http://{LOOPBACK}:{gateway_port}",
            tracking_uri=f"http://{LOOPBACK}:{mlflow_port}",
            ray_folder=str(ray_folder),
            dashboard_port=dashboard_port,
            agent_port=agent_port,
        )
        # Written before and after each start: its id finds the processes even if this one is killed in between.
        self._files.save(instance)
        for name in programs.PROGRAMS:
            instance = instance.with_process(programs.start(name, self._files, instance))
            self._files.save(instance)
        return instance

    def _supervise(self, instance: Instance) -> Instance:
        """Start the supervisor, which saves the state from now on; last, so that a failed start is reported here."""
        command = [sys.executable, "-m", supervisor.__name__, str(self.home), instance.id]
        env = programs.common_environment(self._files, instance)
        instance = instance.with_process(spawn(supervisor.NAME, command, env, self.home))
        self._files.save(instance)
        return instance

    def _wait_until_up(self, instance: Instance) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            for process in instance.processes:
                if not is_alive(process):
                    raise HostError(f"{process.name} did not start; {self._end_of_log(process.name)}")
            silent = self._silent(instance)
            if silent is None:
                return
            if time.monotonic() > deadline:
                raise HostError(f"{silent} does not answer after {_START_SECONDS:.0f} s; {self._end_of_log(silent)}")
            time.sleep(0.2)

    def _recovers(self, instance: Instance) -> bool:
        """Return whether the platform answers, after a while if its supervisor is restarting something."""
        deadline = time.monotonic() + _RECOVER_SECONDS
        while not self._answers(instance):
            instance = self._files.load() or instance
            watcher = instance.process(supervisor.NAME)
            if watcher is None or not is_alive(watcher) or time.monotonic() > deadline:
                return False
            time.sleep(0.2)
        return True

    def _answers(self, instance: Instance) -> bool:
        started = {*programs.PROGRAMS, supervisor.NAME} <= {process.name for process in instance.processes}
        return started and all(map(is_alive, instance.processes)) and self._silent(instance) is None

    def _silent(self, instance: Instance) -> str | None:
        """Return the name of a program that does not answer, or None if all do."""
        if not _is_healthy(f"{instance.tracking_uri}/health"):
            return "mlflow"
        if not _is_healthy(f"{instance.ray_address}/platform/health"):
            return "gateway"
        # Asked directly: the gateway answers while Ray is down.
        head = {"ray_address": instance.dashboard_address, "ray_auth_token_path": self._files.cluster_token}
        behind = self._files.settings(instance).model_copy(update=head)
        with Jobs(behind) as jobs:
            return None if jobs.is_up() else "ray"

    def _end_of_log(self, program: str) -> str:
        log = self.home / "logs" / f"{program}.log"
        return f"its log is {log} and ends with: {_last_line(log)}"

    def _stop(self, instance: Instance | None) -> None:
        if instance is None:
            return
        if watcher := instance.process(supervisor.NAME):
            # First, because it would restart what ends. It may have restarted something since the state was read.
            processes.end(lambda: processes.in_session(watcher), at_once=True)
            instance = self._files.load() or instance
        found = instance
        processes.end(lambda: processes.members(found.id, found.processes))
        # Errors are ignored: since this machine was started, the path may have become that of another user.
        shutil.rmtree(instance.ray_folder, ignore_errors=True)
        with suppress(OSError):  # it is not empty if it is the home
            Path(instance.ray_folder).parent.rmdir()
        self._files.state.unlink(missing_ok=True)

    def _write_secrets(self) -> None:
        # A password has the form of a person's token, which clients send to the platform's own MLflow only.
        password = f"mlp_{secrets.token_hex(10)}_{secrets.token_hex(20)}"
        tokens = dict.fromkeys((self._files.token, self._files.cluster_token), "")
        for file, secret in {**tokens, self._files.password: password}.items():
            if not file.exists():
                with atomic.private_file(file) as draft:
                    draft.write_text(secret or secrets.token_hex(32))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Allow one `up` or `down` at a time in a folder."""
        try:
            make_private(self.home)
            lock = (self.home / "lock").open("w")
        except OSError as error:
            raise HostError(
                f"The folder {self.home} cannot be written ({error.strerror}); make it writable or set MLPLATFORM_HOME."
            ) from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "(nothing)")


def _is_healthy(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5, trust_env=False).is_success
    except httpx.TransportError:
        return False
