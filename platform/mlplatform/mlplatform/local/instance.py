"""An instance of the embedded platform as stored in `state.json`, and its folder."""

from __future__ import annotations

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
        self.cluster_token = path / "cluster.token"
        self.password = path / "mlflow.password"
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
            platform_tracking_uri=instance.tracking_uri,
            tracking_password_file=self.password,
            ray_address=instance.ray_address,
            ray_auth_token_path=self.token,
            storage=str(self.path / "storage"),
            datasets=str(self.path / "datasets"),
            home=self.path,
            s3_endpoint=None,
            driver_label=None,
        )

    def ray_folder(self) -> Path:
        """Return a path for Ray's folder of logs and sockets, whose parent only this user reaches.

        Ray gives its folder and those below it to everybody (mode 0777), and the first `python` of jobs is in there. So
        it is in the home or, if sockets' paths would be too long, in a new folder below the temporary one.

        Raises:
            HostError: the temporary folder cannot be written.
        """
        inside = self.path / "ray"
        if _has_room(inside):
            return inside
        temporary = Path(tempfile.gettempdir())
        if not _has_room(temporary / "mlp-12345678" / "r"):
            temporary = Path("/tmp")  # noqa: S108 - mkdtemp makes a folder that did not exist, with mode 0700
        try:
            return Path(tempfile.mkdtemp(prefix="mlp-", dir=temporary)) / "r"
        except OSError as error:
            raise HostError(f"The folder {temporary} cannot be written ({error.strerror}); set TMPDIR.") from error


def make_private(folder: Path) -> None:
    """Make a folder private, mode 0700, whether or not it exists.

    Raises:
        OSError: it cannot be made.
        HostError: it, or the link to it, belongs to another user, who could replace it.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if {folder.lstat().st_uid, folder.stat().st_uid} != {os.getuid()}:
        raise HostError(
            f"The folder {folder} belongs to another user: remove it, or set MLPLATFORM_HOME to another one."
        )
    folder.chmod(0o700)


def _has_room(ray_folder: Path) -> bool:
    return len(os.fsencode(f"{ray_folder}{RAY_SOCKET}")) <= SOCKET_PATH_BYTES
