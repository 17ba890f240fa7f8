"""Services of the stack as one table: their profile, the ports that they publish as pages, and their image.

The pages, the checks before a start, the detected settings and the halves of `make up ONLY=...` derive from it. A
test compares it with the compose files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlplatform.errors import SettingsError
from mlplatform.settings.stack import StackSettings


@dataclass(frozen=True)
class Port:
    """A port that a service publishes on the host: its page's title, its setting, how to log in, and the page's name.

    A page has its name below `localhost` and DOMAIN; what only programs use has none.
    """

    title: str
    setting: str
    login: str
    name: str = ""


@dataclass(frozen=True)
class Service:
    """A service of the compose files.

    Attributes:
        name: name in the compose files.
        profile: profile that starts it; None for a service that always runs.
        built: folder below images/ of an image that we build; empty for an image that is pulled.
        image_setting: variable of `.env` that names another image; empty if there is none.
        ports: ports that it publishes.
    """

    name: str
    profile: str | None
    built: str = ""
    image_setting: str = ""
    ports: tuple[Port, ...] = ()


STORE = "minio"
"""The stack's own object store."""

STORES = ("postgres", STORE)
"""Services with the stack's data, on which all others depend: they start first and stop last."""

SERVICES = (
    Service(
        "notebook",
        "notebook",
        "notebook",
        ports=(Port("JupyterLab", "NOTEBOOK_PORT", "token in secrets/notebook_token", "notebook"),),
    ),
    Service(
        "gateway",
        "ray",
        "platform",
        ports=(Port("Ray dashboard, jobs; front page at /platform/", "RAY_PORT", "token in secrets/ray_token", "ray"),),
    ),
    Service("ray-head", "ray", "ray"),
    Service(
        "mlflow",
        "tracking",
        "platform",
        ports=(Port("MLflow", "MLFLOW_PORT", "user and password in secrets/mlflow_person", "mlflow"),),
    ),
    Service("mlflow-migrate", "tracking", "platform"),
    Service(
        "grafana",
        "grafana",
        image_setting="GRAFANA_IMAGE",
        ports=(Port("Grafana", "GRAFANA_PORT", "admin, password in secrets/grafana_password", "grafana"),),
    ),
    Service("grafana-dashboards", "grafana", "ray"),
    Service(
        "prometheus",
        "monitoring",
        image_setting="PROMETHEUS_IMAGE",
        ports=(
            Port("Prometheus", "PROMETHEUS_PORT", "prometheus, password in secrets/prometheus_password", "prometheus"),
        ),
    ),
    Service("alertmanager", "monitoring", image_setting="ALERTMANAGER_IMAGE"),
    Service("postgres-exporter", "monitoring", image_setting="POSTGRES_EXPORTER_IMAGE"),
    Service("dcgm-exporter", "gpu-metrics", image_setting="GPU_EXPORTER_IMAGE"),
    Service("amd-exporter", "gpu-metrics", image_setting="GPU_EXPORTER_IMAGE"),
    Service(
        STORE,
        None,
        "minio",
        image_setting="S3_IMAGE",
        ports=(
            Port("MinIO console", "S3_CONSOLE_PORT", "key and secret in secrets/s3_people", "minio"),
            Port("MinIO (S3)", "S3_PORT", "key and secret in secrets/s3_people"),
        ),
    ),
    Service("proxy", "proxy", "proxy"),
    Service("hub", "hosts", "link"),
    Service("copies", "hosts", "link"),
    Service("backup-timer", "backup-timer", "platform"),
    Service("storage-init", None, "platform"),
    Service("postgres", None, image_setting="POSTGRES_IMAGE"),
)
"""Services in the order in which their pages are shown."""

NOTEBOOK = "notebook"

PERSONAL_NOTEBOOKS = "personal-notebooks"
"""Profile of the notebooks of people, which replaces that of the shared one (`notebook_file.py`)."""

GPU_METRICS = "gpu-metrics"
"""Profile of the exporters of GPU metrics, without which everything else works."""

GPU_EXPORTERS = {"cuda": "dcgm-exporter", "rocm": "amd-exporter"}

DEFAULT_PROFILES = ("tracking", "ray", "notebook", "monitoring", "grafana")
GPU_PROFILES = (*DEFAULT_PROFILES, GPU_METRICS)
ALL_PROFILES = (*GPU_PROFILES, "hosts", "proxy", "backup-timer", PERSONAL_NOTEBOOKS)

ONLY = {
    "tracking": tuple(profile for profile in ALL_PROFILES if profile not in ("ray", GPU_METRICS, "hosts")),
    "ray": tuple(profile for profile in ALL_PROFILES if profile != "tracking"),
}
"""Profiles that `make up ONLY=...` may start; each leaves out the other half of the stack."""


def only_variables(settings: StackSettings, only: str | None) -> dict[str, str]:
    """Return the variables that leave out the other half of the stack; none if `only` is empty.

    Raises:
        SettingsError: `only` is unknown.
    """
    if not only:
        return {}
    if only not in ONLY:
        raise SettingsError(f"ONLY={only} is unknown; use one of {', '.join(ONLY)}, or leave it out for everything.")
    chosen = [profile for profile in profiles_of(settings) if profile in ONLY[only]]
    variables = {"COMPOSE_PROFILES": ",".join(chosen)}
    # Empty means no server. Jobs and the notebook then report that instead of waiting for one.
    return {**variables, "TRACKING_ADDRESS": ""} if only == "ray" else {**variables, "JOBS_ADDRESS": ""}


def profiles_of(settings: StackSettings, only: str | None = None) -> list[str]:
    """Return the profiles that a start uses.

    BACKUP_TO adds that of the timer of backups, and notebooks of people replace the shared one.
    """
    profiles = only_variables(settings, only).get("COMPOSE_PROFILES", settings.profiles).split(",")
    if settings.backup_to:
        profiles.append("backup-timer")
    if settings.notebook_layout == "generated":
        profiles = [*(profile for profile in profiles if profile != NOTEBOOK), PERSONAL_NOTEBOOKS]
    return [profile for profile in dict.fromkeys(profiles) if profile]


def available(settings: StackSettings) -> list[Service]:
    """Return the services that these settings can start: all, without an object store that another server replaces."""
    return [service for service in SERVICES if service.name != STORE or not settings.s3_endpoint]


def stores(settings: StackSettings) -> list[str]:
    """Return those of `STORES` that these settings can start."""
    return [name for name in STORES if name != STORE or not settings.s3_endpoint]


def started(settings: StackSettings, profiles: list[str]) -> list[Service]:
    """Return the services that a start with these profiles includes."""
    return [service for service in available(settings) if service.profile is None or service.profile in profiles]


@dataclass(frozen=True, kw_only=True)
class Page(Port):
    """A published port of a service that may be started: its number, and the service's profile."""

    service: str
    profile: str | None
    port: int


def pages(settings: StackSettings) -> list[Page]:
    """Return every published port, in the order in which people need them."""
    return [
        Page(
            **vars(port),
            service=service.name,
            profile=service.profile,
            port=getattr(settings, port.setting.lower()),
        )
        for service in available(settings)
        for port in service.ports
    ]


def ssh_line(shown: Sequence[Page], user_at_host: str) -> str:
    """Return the one command that forwards pages to a laptop, on the same ports."""
    forwards = " ".join(f"-L {page.port}:127.0.0.1:{page.port}" for page in shown)
    return f"ssh -N {forwards} {user_at_host}"
