"""Files of `secrets/`: modes, completeness, and tokens and passwords, tried where people use them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from mlplatform.credentials import read_mlflow_account
from mlplatform.settings.stack import LOOPBACK, StackSettings
from mlplatform.stack import secrets_folder
from mlplatform.stack.checks.finding import Finding, Place

_REJECTED = (401, 403)

_RESTART = "make down up"

_USERS = {"Grafana": "admin", "Prometheus": "prometheus"}
"""Services that ask for a user and a password; others take a token."""


@dataclass(frozen=True)
class _LogIn:
    """A request that needs a secret.

    Attributes:
        service: who answers.
        secret: file in `secrets/`.
        port: port of the service.
        path: path that needs the secret.
        fix: command after which the service accepts the file.
    """

    service: str
    secret: str
    port: int
    path: str
    fix: str = _RESTART

    def send(self, folder: Path) -> httpx.Response:
        address = f"http://{LOOPBACK}:{self.port}{self.path}"
        file = folder / self.secret
        if self.secret.startswith("mlflow_"):
            return httpx.get(address, auth=read_mlflow_account(file), timeout=10, trust_env=False)
        secret = file.read_text().strip()
        if user := _USERS.get(self.service):
            return httpx.get(address, auth=(user, secret), timeout=10, trust_env=False)
        scheme = "token" if self.service == "JupyterLab" else "Bearer"
        return httpx.get(address, headers={"Authorization": f"{scheme} {secret}"}, timeout=10, trust_env=False)


def files(place: Place) -> Iterator[Finding]:
    """Yield a folder that other users can open, and secrets that are missing or empty."""
    folder = place.root / "secrets"
    if folder.is_dir() and (mode := folder.stat().st_mode & 0o777) != 0o700:
        yield Finding(
            f"{folder} has the mode {mode:04o} instead of 0700.",
            "Its files are readable by all, so that the folder's mode alone keeps other users of this host out.",
            f"chmod 700 {folder}",
            repair=lambda: folder.chmod(0o700),
        )
    paths = [folder / name for name in secrets_folder.FILES]
    if missing := [path.name for path in paths if not path.exists() or not path.stat().st_size]:
        yield Finding(
            f"{len(missing)} files of {folder} are missing or empty: {', '.join(missing)}.",
            "A service without its password does not start, or falls back to a known one.",
            "make env",
            blocks=True,
            repair=lambda: secrets_folder.write_missing(folder),
        )


def rejected(place: Place) -> Iterator[Finding]:
    """Yield each file that its service rejects; a service that does not run is left out."""
    folder = place.root / "secrets"
    for log_in in _log_ins(place.settings):
        if not (folder / log_in.secret).is_file():
            continue  # `files` reports it
        try:
            answer = log_in.send(folder)
        except httpx.TransportError:
            continue  # `health` reports a service of ours that failed
        if answer.status_code in _REJECTED:
            yield Finding(
                f"{log_in.service} rejects secrets/{log_in.secret} ({answer.status_code}).",
                "The file was replaced after the service had read it: nobody can log in, and clients fail.",
                log_in.fix,
                blocks=True,
            )


def _log_ins(settings: StackSettings) -> Iterator[_LogIn]:
    yield _LogIn("The gateway", "ray_token", settings.ray_port, "/api/version")
    yield _LogIn("The gateway", "prometheus_password", settings.ray_port, "/platform/metrics")
    yield _LogIn("The gateway", "log_shipper_token", settings.ray_port, "/platform/logs")
    for account in ("mlflow_person", "mlflow_admin"):
        yield _LogIn("MLflow", account, settings.mlflow_port, "/version")
    yield _LogIn("JupyterLab", "notebook_token", settings.notebook_port, "/api/status")
    yield _LogIn("Prometheus", "prometheus_password", settings.prometheus_port, "/-/healthy")
    command = "grafana cli admin reset-admin-password --password-from-stdin <secrets/grafana_password"
    reset = f"docker exec --interactive {settings.prefix}grafana {command}"
    yield _LogIn("Grafana", "grafana_password", settings.grafana_port, "/api/user", reset)
