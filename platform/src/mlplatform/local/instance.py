"""An instance of the embedded platform as stored in `state.json`, and its folder."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import httpx

from mlplatform.errors import HostError
from mlplatform.files import atomic
from mlplatform.local.processes import LOOPBACK, Process
from mlplatform.settings.job import Settings

SOCKET_PATH_BYTES = 107
"""Longest path of a Unix socket on Linux."""

RAY_SOCKET = f"/session_2000-01-01_00-00-00_000000_1234567/sockets/{'dash_MetricsHead':24}"
"""Longest socket path that Ray creates below its folder, with a margin for later versions."""


@dataclass(frozen=True)
class Instance:
    """Addresses and processes that `up` has started."""

    id: str
    ray_address: str
    """The gateway's address: people, jobs and `ray job submit` use it as RAY_ADDRESS."""

    tracking_uri: str
    ray_folder: str
    dashboard_port: int = 0
    """Port of Ray's own dashboard, which only the gateway uses."""

    agent_port: int = 0
    """Port of the agent on Ray's node."""

    processes: list[Process] = field(default_factory=list)
    """Processes, at most one per name."""

    @property
    def dashboard_address(self) -> str:
        """Ray's own dashboard, behind the gateway."""
        return f"http://{LOOPBACK}:{self.dashboard_port}"

    @property
    def ports(self) -> set[int]:
        """Ports that its programs open, or have opened."""
        urls = (self.ray_address, self.tracking_uri)
        return {self.dashboard_port, self.agent_port, *(httpx.URL(url).port or 0 for url in urls)}

    def process(self, name: str) -> Process | None:
        """Return the process of a program; None before it was started."""
        return next((process for process in self.processes if process.name == name), None)

    def with_process(self, process: Process) -> Instance:
        """Return the instance with a program's new process in place of its old one."""
        return replace(self, processes=[*(old for old in self.processes if old.name != process.name), process])


class Home:
    """The folder of one embedded platform: state, token, logs, runs, checkpoints."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.token = path / "ray.token"
        self.state = path / "state.json"

    def load(self) -> Instance | None:
        """Read the instance; None if there is none.

        Raises:
            HostError: the file is damaged.
        """
        try:
            state = json.loads(self.state.read_text())
            processes = [Process(**process) for process in state.pop("processes")]
            return Instance(**state, processes=processes)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise HostError(
                f"{self.state} is damaged ({error}); remove it, and end the processes that `ps` shows with {self.path}."
            ) from error

    def save(self, instance: Instance) -> None:
        """Replace `state.json`, whole or not at all."""
        with atomic.new_file(self.state) as draft:
            draft.write_text(json.dumps(asdict(instance), indent=2))

    def settings(self, instance: Instance) -> Settings:
        """Return what a job, a notebook or a shell needs to reach the instance."""
        return Settings.load(
            tracking_uri=instance.tracking_uri,
            ray_address=instance.ray_address,
            ray_auth_token_path=self.token,
            storage=str(self.path / "storage"),
            datasets=str(self.path / "datasets"),
            home=self.path,
            s3_endpoint=None,
            driver_label=None,
        )

    def ray_folder(self) -> Path:
        """Return Ray's folder for logs and sockets: in the home, or in the temporary folder if that is too deep."""
        inside = self.path / "ray"
        if len(str(inside) + RAY_SOCKET) <= SOCKET_PATH_BYTES:
            return inside
        digest = hashlib.sha256(str(self.path).encode()).hexdigest()[:8]
        return Path(tempfile.gettempdir()) / f"mlplatform-{os.getuid()}-{digest}"
