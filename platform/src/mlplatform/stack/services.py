"""Facts of the services that the compose files do not have: pages, settings of images, and groups of profiles.

A test compares them with the compose files, which have everything else: profiles, images, names of containers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mlplatform.errors import SettingsError
from mlplatform.settings.stack import StackSettings


@dataclass(frozen=True)
class Page:
    """A port that a service publishes on the host.

    Attributes:
        title: title of the page.
        service: name of the service in the compose files.
        setting: variable of `.env` with the port; empty if that is in a generated file.
        login: how to log in.
        name: name below `localhost` and DOMAIN; empty for what only programs use.
        port: the port, once settings are known.
    """

    title: str
    service: str
    setting: str
    login: str
    name: str = ""
    port: int = 0


STORE = "minio"
"""The stack's own object store."""

STORES = ("postgres", STORE)
"""Services with the stack's data, on which all others depend: they start first and stop last."""

PAGES = (
    Page("JupyterLab", "notebook", "NOTEBOOK_PORT", "token in secrets/notebook_token", "notebook"),
    Page("Ray dashboard, jobs; front page at /platform/", "gateway", "RAY_PORT", "token in secrets/ray_token", "ray"),
    Page("MLflow", "mlflow", "MLFLOW_PORT", "user and password in secrets/mlflow_person", "mlflow"),
    Page("Grafana", "grafana", "GRAFANA_PORT", "admin, password in secrets/grafana_password", "grafana"),
    Page(
        *("Prometheus", "prometheus", "PROMETHEUS_PORT"),
        login="prometheus, password in secrets/prometheus_password",
        name="prometheus",
    ),
    Page("MinIO console", STORE, "S3_CONSOLE_PORT", "key and secret in secrets/s3_people", "minio"),
    Page("MinIO (S3)", STORE, "S3_PORT", "key and secret in secrets/s3_people"),
)
"""Published ports, in the order in which people need them."""

IMAGE_SETTINGS = {
    "grafana": "GRAFANA_IMAGE",
    "prometheus": "PROMETHEUS_IMAGE",
    "alertmanager": "ALERTMANAGER_IMAGE",
    "postgres-exporter": "POSTGRES_EXPORTER_IMAGE",
    "dcgm-exporter": "GPU_EXPORTER_IMAGE",
    "amd-exporter": "GPU_EXPORTER_IMAGE",
    STORE: "S3_IMAGE",
    "postgres": "POSTGRES_IMAGE",
}
"""Service -> variable of `.env` that names another image for it."""

NOTEBOOK = "notebook"

PERSONAL_NOTEBOOKS = "personal-notebooks"
"""Profile of the notebooks of people, which replaces that of the shared one (`notebook_file.py`)."""

GPU_METRICS = "gpu-metrics"
"""Profile of the exporters of GPU metrics, without which everything else works."""

GPU_EXPORTERS = {"cuda": "dcgm-exporter", "rocm": "amd-exporter"}

GPU_PROFILES = ("tracking", "ray", "notebook", "monitoring", "grafana", GPU_METRICS)
"""Profiles of a host with GPUs."""

_OTHERS = {"tracking": ("ray", GPU_METRICS, "hosts"), "ray": ("tracking",)}
"""Profiles of the other half of the stack, which `make up ONLY=...` leaves out."""


def start_variables(settings: StackSettings, only: str | None) -> dict[str, str]:
    """Return the variables of Compose for a start: its profiles, and the address of the half that it leaves out."""
    profiles = {"COMPOSE_PROFILES": ",".join(profiles_of(settings, only))}
    if not only:
        return profiles
    # Empty means no server. Jobs and the notebook then report that instead of waiting for one.
    return {**profiles, "TRACKING_ADDRESS" if only == "ray" else "JOBS_ADDRESS": ""}


def profiles_of(settings: StackSettings, only: str | None = None) -> list[str]:
    """Return the profiles that a start uses.

    BACKUP_TO adds that of the timer of backups, and notebooks of people replace the shared one.

    Raises:
        SettingsError: `only` is unknown.
    """
    if only and only not in _OTHERS:
        raise SettingsError(f"ONLY={only} is unknown; use one of {', '.join(_OTHERS)}, or leave it out for everything.")
    left_out = {"", *_OTHERS.get(only or "", ())}
    profiles = settings.compose_profiles.split(",")
    if settings.backup_to:
        profiles.append("backup-timer")
    if settings.notebook_layout == "generated":
        left_out.add(NOTEBOOK)
        profiles.append(PERSONAL_NOTEBOOKS)
    return [profile for profile in dict.fromkeys(profiles) if profile not in left_out]


def stores(settings: StackSettings) -> list[str]:
    """Return those of `STORES` that these settings can start."""
    return [name for name in STORES if name != STORE or not settings.s3_endpoint_url]


def pages(settings: StackSettings) -> list[Page]:
    """Return every port that these settings can publish; another S3 server's are its own."""
    shown = (page for page in PAGES if page.service != STORE or not settings.s3_endpoint_url)
    return [replace(page, port=getattr(settings, page.setting.lower())) for page in shown]


def ssh_line(shown: Sequence[Page], user_at_host: str) -> str:
    """Return the one command that forwards pages to a laptop, on the same ports."""
    forwards = " ".join(f"-L {page.port}:127.0.0.1:{page.port}" for page in shown)
    return f"ssh -N {forwards} {user_at_host}"
