"""Files of a rotation of secrets: what belongs together, the new and former values, and how they replace each other.

secrets/.rotation/new/NAME       new secrets, complete before anything else changes
secrets/.rotation/former/NAME    those that they replace, which Postgres and MinIO may still require
secrets/.rotation/plan.json      exists from then on until the rotation is complete, so that it can be resumed
secrets/.rotation/waiting.json   written at its end, while attempts are running that use former accounts
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from mlplatform import credentials
from mlplatform.errors import SettingsError
from mlplatform.files import atomic
from mlplatform.stack.secrets_folder import FILES, TO_FILL_IN


@dataclass(frozen=True)
class Group:
    """Secrets that are changed together.

    Attributes:
        profile: profile of the services that own them, or `minio` for the stack's own object store; None for services
            that always run.
        secrets: their files.
        interrupts: consequence for people, if there is one; such a group is changed only if it is named.
    """

    profile: str | None
    secrets: tuple[str, ...]
    interrupts: str = ""


def _named(prefix: str) -> tuple[str, ...]:
    return tuple(name for name in FILES if name.startswith(prefix))


GROUPS = {
    "postgres": Group(None, _named("postgres_")),
    "minio": Group("minio", tuple(name for name in _named("minio_") if name != "minio_root_user")),
    "mlflow": Group("tracking", _named("mlflow_")),
    "people": Group("ray", ("gateway_secrets_key",)),
    "monitoring": Group(
        "monitoring",
        ("gateway_prometheus_token", "prometheus_password", "prometheus_web", "metrics_password", "metrics_web"),
    ),
    "grafana": Group("grafana", ("grafana_password",)),
    "certificates": Group("proxy", ()),
    "notebook": Group("notebook", ("notebook_token",), "JupyterLab restarts, which ends kernels and terminals"),
    "ray": Group(
        "ray",
        ("cluster_token", "ray_token", "log_shipper_token"),
        "Ray restarts, and open jobs continue as their next attempt",
    ),
}
"""Groups by name, in the order in which they are shown."""

NOT_ROTATED = {
    **dict.fromkeys(TO_FILL_IN, "issued by an external service; replace its content and run `make up`"),
    "minio_root_user": "a name, not a secret",
    "no_account": "a comment, not a secret",
    "backup_password": "backups that exist are encrypted with it; change it in each with `restic key passwd`",
}
"""Secrets that no group changes, with the reason."""

FORMER = "former"
"""Name that asks for the end of former accounts only."""


@dataclass(frozen=True)
class Plan:
    """A rotation that has begun.

    Attributes:
        groups: what it changes.
        services: services that were running when it began; those that it stops are started again.
    """

    groups: tuple[str, ...]
    services: tuple[str, ...]

    @property
    def secrets(self) -> set[str]:
        """Files that change."""
        return {name for group in self.groups for name in GROUPS[group].secrets}


def chosen(only: str, profiles: Collection[str]) -> tuple[str, ...]:
    """Return the groups that a command names, comma-separated; by default those that interrupt neither job nor person.

    Raises:
        SettingsError: a group is unknown, or its services are not part of this stack.
    """
    present = [name for name, group in GROUPS.items() if group.profile is None or group.profile in profiles]
    if not only:
        return tuple(name for name in present if not GROUPS[name].interrupts)
    names = present if only == "all" else [part.strip() for part in only.split(",") if part.strip()]
    if unknown := [name for name in names if name not in present]:
        raise SettingsError(
            f"ONLY={only}: this stack has no secrets {unknown[0]!r}; use some of {', '.join(present)}, separated by "
            f"commas, or one of all, {FORMER}."
        )
    return tuple(name for name in GROUPS if name in names)


class Rotation:
    """Files of the rotations of one stack.

    Args:
        folder: of the secrets.
    """

    def __init__(self, folder: Path) -> None:
        self._secrets = folder
        self.folder = folder / ".rotation"
        self._plan = self.folder / "plan.json"
        self._waiting = self.folder / "waiting.json"

    @property
    def plan(self) -> Plan | None:
        """The rotation that has begun and is not complete."""
        if not self._plan.exists():
            return None
        values = json.loads(self._plan.read_text())
        return Plan(tuple(values["groups"]), tuple(values["services"]))

    @property
    def waiting_since(self) -> datetime | None:
        """Time of a complete rotation whose former accounts are still used."""
        return datetime.fromisoformat(json.loads(self._waiting.read_text())) if self._waiting.exists() else None

    def begin(self, plan: Plan) -> None:
        """Generate the new secrets and keep the former ones; nothing else has changed when this is interrupted."""
        self._clear_values()
        for part in ("new", "former"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        for name in FILES:
            if name in plan.secrets:
                _write(self.folder / "former" / name, (self._secrets / name).read_bytes())
                self._generate(name)
        # Services of other users read these folders, which are mounted without the one around them.
        for folder in (self.folder, self.folder / "new", self.folder / "former"):
            folder.chmod(0o755)
        text = json.dumps({"groups": plan.groups, "services": plan.services})
        _write(self._plan, text.encode(), 0o600)

    def _generate(self, name: str) -> None:
        path = self.folder / "new" / name
        with atomic.new_file(path) as draft:
            if name == "minio_job":
                # Clients read an account once, so that running attempts need theirs beside the new one.
                credentials.s3_account(f"job-{secrets.token_hex(4)}", draft)
            else:
                FILES[name](draft)
            draft.chmod(0o444)

    def new(self, name: str) -> str:
        """Return a new secret."""
        return (self.folder / "new" / name).read_text()

    def install(self, names: Iterable[str], in_place: Collection[str]) -> None:
        """Replace secrets by the new ones.

        Args:
            names: their files.
            in_place: those that containers have mounted which continue to run. A mount shows the file that existed
                when the container started, so that a new file under the same name would stay invisible to it.
        """
        for name in sorted(names):
            content = (self.folder / "new" / name).read_bytes()
            if name in in_place:
                _overwrite(self._secrets / name, content)
            else:
                _write(self._secrets / name, content)

    def wait(self) -> None:
        """Record that attempts are running which use former accounts."""
        _write(self._waiting, json.dumps(datetime.now(UTC).isoformat()).encode(), 0o600)

    def stop_waiting(self) -> None:
        """Record that nothing uses a former account any more."""
        self._waiting.unlink(missing_ok=True)

    def end(self) -> None:
        """Complete the rotation."""
        self._plan.unlink(missing_ok=True)
        self._clear_values()
        if not self._waiting.exists():
            shutil.rmtree(self.folder, ignore_errors=True)

    def _clear_values(self) -> None:
        for part in ("new", "former"):
            shutil.rmtree(self.folder / part, ignore_errors=True)


def _write(path: Path, content: bytes, mode: int = 0o444) -> None:
    with atomic.new_file(path) as draft:
        draft.touch(mode=0o600)
        draft.write_bytes(content)
        draft.chmod(mode)


def _overwrite(path: Path, content: bytes) -> None:
    """Write to an existing file with one call, so that no reader finds it empty."""
    mode = path.stat().st_mode & 0o777
    path.chmod(mode | 0o200)
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(descriptor, content, 0)
        os.ftruncate(descriptor, len(content))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
        path.chmod(mode)
