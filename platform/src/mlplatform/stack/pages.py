"""Web pages of the stack, and the ssh line that forwards them to a laptop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlplatform.errors import SettingsError
from mlplatform.settings.stack import StackSettings

# What `make up ONLY=...` starts; each leaves the other half out.
ONLY = {
    "tracking": ("tracking", "notebook", "monitoring", "grafana"),
    "ray": ("ray", "notebook", "monitoring", "grafana", "gpu-metrics"),
}


@dataclass(frozen=True)
class Page:
    """A port that the stack publishes: which service has it, when, and what to log in with."""

    title: str
    service: str
    profile: str | None
    setting: str
    port: int
    login: str


def pages(settings: StackSettings) -> list[Page]:
    """Every published port, in the order in which people need them."""

    def page(title: str, service: str, profile: str | None, setting: str, login: str) -> Page:
        return Page(title, service, profile, setting, getattr(settings, setting.lower()), login)

    return [
        page("JupyterLab", "notebook", "notebook", "NOTEBOOK_PORT", "token in secrets/notebook_token"),
        page("Ray dashboard and jobs", "gateway", "ray", "RAY_PORT", "token in secrets/ray_token"),
        page("MLflow", "mlflow", "tracking", "MLFLOW_PORT", "user and password in secrets/mlflow_person"),
        page("Grafana", "grafana", "grafana", "GRAFANA_PORT", "admin, password in secrets/grafana_password"),
        page(
            "Prometheus",
            "prometheus",
            "monitoring",
            "PROMETHEUS_PORT",
            "prometheus, password in secrets/prometheus_password",
        ),
        page("MinIO console", "minio", None, "MINIO_CONSOLE_PORT", "key and secret in secrets/minio_person"),
        page("MinIO (S3)", "minio", None, "MINIO_PORT", "key and secret in secrets/minio_person"),
    ]


def ssh_line(shown: Sequence[Page], user_at_host: str) -> str:
    """The one command that brings pages to a laptop, on the same ports."""
    forwards = " ".join(f"-L {page.port}:127.0.0.1:{page.port}" for page in shown)
    return f"ssh -N {forwards} {user_at_host}"


def only_variables(settings: StackSettings, only: str | None) -> dict[str, str]:
    """The variables that leave the other half of the stack out; none where `only` is empty."""
    if not only:
        return {}
    if only not in ONLY:
        raise SettingsError(f"ONLY={only} is unknown; it is one of {', '.join(ONLY)}, or left out for everything.")
    chosen = [profile for profile in settings.profiles.split(",") if profile in ONLY[only]]
    variables = {"COMPOSE_PROFILES": ",".join(chosen)}
    # Empty means: there is none. Jobs and the notebook say so instead of waiting for a server that never comes.
    return {**variables, "TRACKING_ADDRESS": ""} if only == "ray" else {**variables, "JOBS_ADDRESS": ""}
