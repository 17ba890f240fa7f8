"""Settings of the stack on its host, read from `.env`."""

from __future__ import annotations

import re
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from mlplatform.errors import SettingsError
from mlplatform.settings.load import load_settings
from mlplatform.settings.storage import bucket_quotas

LOOPBACK = "127.0.0.1"

PROXY = "proxy"
"""Profile of the TLS entrance."""

Accelerator = Literal["cpu", "cuda", "rocm"]
"""Kind of hardware on which jobs train."""

_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30}


def _size(text: object) -> object:
    """Convert Docker's notation of a size ("512m", "8g", "8gb"), or a number of bytes, to bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *([bkmg]?)b?", str(text).lower())
    if not found:
        raise ValueError("a size is a number with a unit, such as 512m or 8g")
    return int(float(found[1]) * _UNITS[found[2]])


def _setting(default: Any, variable: str, of_host: bool, **limits: Any) -> Any:
    return Field(default, validation_alias=variable, json_schema_extra={"of_host": of_host}, **limits)


def _of_host(default: Any, variable: str, **limits: Any) -> Any:
    """Return the field of a setting of this host's hardware, addresses, mirrors or disks, which a restore keeps."""
    return _setting(default, variable, True, **limits)


def _of_stack(default: Any, variable: str, **limits: Any) -> Any:
    """Return the field of a setting of the stack, which a restore adopts from the backup."""
    return _setting(default, variable, False, **limits)


Size = Annotated[int, BeforeValidator(_size)]
"""Bytes, in Docker's notation."""


class StackSettings(BaseSettings):
    """Settings of the stack on this host, from its `.env`."""

    model_config = SettingsConfigDict(extra="ignore", frozen=True, env_ignore_empty=True)

    version: str = _of_host(..., "MLPLATFORM_VERSION")
    """Tag of the images that we build; `make env` keeps it at the checkout's version."""

    accelerator: Accelerator = _of_host("cpu", "ACCELERATOR")
    """Kind of hardware, which selects the workers' devices and the exporters."""

    worker_layout: Literal["host", "gpu", "generated"] = _of_host("gpu", "WORKER_LAYOUT")
    """One worker with all GPUs, two with one each, or the generated file for other counts."""

    worker_gpus: float = _of_host(0, "WORKER_GPUS", ge=0)
    """GPUs that each worker declares to Ray."""

    worker_memory: Size = _of_host("8g", "WORKER_MEMORY")
    """Memory limit of each worker."""

    worker_shm: Size = _of_host("4g", "WORKER_SHM")
    """Shared memory of each worker, a part of its memory."""

    worker_object_store: Size = _of_host(10**9, "WORKER_OBJECT_STORE")
    """Ray's object store on each worker, a part of its shared memory."""

    notebook_gpus: str = _of_host("", "NOTEBOOK_GPUS")
    """GPUs that the notebook can use, comma-separated numbers."""

    notebook_memory: Size = _of_host("8g", "NOTEBOOK_MEMORY")
    """Memory limit of the notebook."""

    notebook_shm: Size = _of_host("2g", "NOTEBOOK_SHM")
    """Shared memory of the notebook, a part of its memory."""

    notebook_layout: Literal["shared", "generated"] = _of_host("shared", "NOTEBOOK_LAYOUT")
    """One notebook for everybody, or one per person in the generated file."""

    notebook_idle_seconds: int = _of_host(7200, "NOTEBOOK_IDLE_SECONDS", ge=0)
    """Time after which an unused kernel of a person's notebook ends; 0 for never."""

    render_gid: str = _of_host("", "RENDER_GID", pattern=r"^\d*$")
    """Id of the host's group that may use AMD's devices; empty if it is unknown or not needed."""

    torch_index: str = _of_host("", "TORCH_INDEX_URL")
    """Index with other builds of torch for Ray's image; empty for that of the other packages."""

    prefix: str = _of_host("", "STACK_PREFIX", pattern=r"^([a-z0-9][a-z0-9_.-]*)?$")
    """Prefix of every container's name, so that one host can run two stacks."""

    food11_volume: str = _of_host("food11", "FOOD11_VOLUME")
    """Docker volume with the photos of Food-11, which the stacks of a host may share."""

    cluster_network: str = _of_host("10.213.76", "CLUSTER_NETWORK", pattern=r"^(\d{1,3}\.){2}\d{1,3}$")
    """First three numbers of the addresses of Ray and of what jobs use."""

    profiles: str = _of_host("", "COMPOSE_PROFILES")
    """Optional services, comma-separated."""

    bind_address: str = _of_host(LOOPBACK, "BIND_ADDRESS", validate_default=True)
    """Address on which the TLS entrance publishes the ports; services publish theirs on loopback."""

    domain: str = _of_host("", "DOMAIN", pattern=r"^([a-z0-9-]+(\.[a-z0-9-]+)*)?$")
    """Name of this host for the TLS entrance; services also have names below it."""

    acme_email: str = _of_host("", "ACME_EMAIL", pattern=r"^([^@\s]+@[^@\s]+)?$")
    """Account for certificates by ACME; empty for those of our own authority."""

    https_port: int = _of_host(443, "HTTPS_PORT", ge=1, le=65535)
    """Port of the services' names."""

    s3_endpoint: str = _of_host("", "S3_ENDPOINT_URL", pattern=r"^(https?://[^\s/@]+)?$")
    """Address of another S3 server that replaces the stack's own object store; empty for the latter."""

    s3_image: str = _of_host("", "S3_IMAGE")
    """Image of the stack's own object store; empty means the one that we build."""

    disk_needed: int = _of_host(20, "DISK_NEEDED_GB", ge=0)
    """Free space on Docker's disk, in GB, below which the stack is not started."""

    backup_to: str = _of_host("", "BACKUP_TO", pattern=r"^([^-].*)?$")
    """Folder of the host, `s3:...` or `rest:...` to which backups are made on a timer; empty for none."""

    backup_every_hours: float = _of_stack(24, "BACKUP_EVERY_HOURS", gt=0)
    """Hours from one of these backups to the next."""

    backup_keep_daily: int = _of_stack(7, "BACKUP_KEEP_DAILY", ge=0)
    """Days of which `make backup` keeps the last backup."""

    backup_keep_weekly: int = _of_stack(4, "BACKUP_KEEP_WEEKLY", ge=0)
    """Weeks of which it keeps the last one."""

    backup_keep_monthly: int = _of_stack(6, "BACKUP_KEEP_MONTHLY", ge=0)
    """Months of which it keeps the last one."""

    bucket_quotas: str = _of_stack("", "BUCKET_QUOTAS")
    """Limits of buckets; empty for none."""

    checkpoint_version_days: int = _of_stack(1, "CHECKPOINT_VERSION_DAYS", ge=0)
    """Days for which replaced and deleted checkpoints are kept; 0 for none."""

    version_days: int = _of_stack(7, "VERSION_DAYS", ge=1)
    """Days for which replaced and deleted objects of versioned buckets are kept."""

    checkpoints_keep_days: float | None = _of_stack(None, "CHECKPOINTS_KEEP_DAYS", gt=0)
    """Days after a job's end for which its checkpoints are kept; None: forever."""

    runs_keep_days: float | None = _of_stack(None, "RUNS_KEEP_DAYS", gt=0)
    """Days for which MLflow keeps deleted runs with their artifacts; None: forever."""

    hub_port: int = _of_host(51820, "HUB_PORT", ge=1, le=65535)
    """UDP port for the traffic of joined hosts."""

    mlflow_port: int = _of_host(8000, "MLFLOW_PORT", ge=1, le=65535)
    s3_port: int = _of_host(9000, "S3_PORT", ge=1, le=65535)
    s3_console_port: int = _of_host(9001, "S3_CONSOLE_PORT", ge=1, le=65535)
    ray_port: int = _of_host(8265, "RAY_PORT", ge=1, le=65535)
    notebook_port: int = _of_host(8888, "NOTEBOOK_PORT", ge=1, le=65535)
    prometheus_port: int = _of_host(9090, "PROMETHEUS_PORT", ge=1, le=65535)
    grafana_port: int = _of_host(3000, "GRAFANA_PORT", ge=1, le=65535)

    # Read by the compose files only.
    worker_cpus: int = _of_host(8, "WORKER_CPUS", ge=1)
    ray_head_memory: Size = _of_host("4g", "RAY_HEAD_MEMORY")
    warm_start: Literal["0", "1"] = _of_stack("1", "WARM_START")
    open_files: int = _of_host(65536, "OPEN_FILES", ge=1)
    notebook_user: str = _of_host("", "NOTEBOOK_USER")
    job_starts: int = _of_host(4, "JOB_STARTS", ge=1)
    job_start_seconds: float = _of_stack(1200, "JOB_START_SECONDS", gt=0)
    grace_seconds: float = _of_stack(120, "GRACE_SECONDS", gt=0)
    overdue_seconds: float = _of_stack(259_200, "OVERDUE_SECONDS", gt=0)
    mlflow_workers: int = _of_stack(2, "MLFLOW_WORKERS", ge=1)
    webhook_schemes: str = _of_stack("https", "WEBHOOK_SCHEMES")
    webhook_private_addresses: Literal["true", "false"] = _of_stack("false", "WEBHOOK_PRIVATE_ADDRESSES")
    prometheus_retention: str = _of_stack("15d", "PROMETHEUS_RETENTION")
    mail_server: str = _of_stack("", "MAIL_SERVER", pattern=r"^(.+:\d+)?$")
    mail_sender: str = _of_stack("", "MAIL_SENDER")
    mail_user: str = _of_stack("", "MAIL_USER")
    mail_tls: Literal["required", "off"] = _of_stack("required", "MAIL_TLS")
    mail_domains: str = _of_stack("", "MAIL_DOMAINS")
    disk_reserve_gb: float = _of_stack(2, "DISK_RESERVE_GB", ge=0)
    postgres_image: str = _of_host("", "POSTGRES_IMAGE")
    prometheus_image: str = _of_host("", "PROMETHEUS_IMAGE")
    alertmanager_image: str = _of_host("", "ALERTMANAGER_IMAGE")
    postgres_exporter_image: str = _of_host("", "POSTGRES_EXPORTER_IMAGE")
    grafana_image: str = _of_host("", "GRAFANA_IMAGE")
    gpu_exporter_image: str = _of_host("", "GPU_EXPORTER_IMAGE")
    pip_index: str = _of_host("", "PIP_INDEX_URL")
    goproxy: str = _of_host("", "GOPROXY")

    @classmethod
    def of_host(cls) -> frozenset[str]:
        """Return the variables that belong to a host, which a restore keeps; all others belong to the stack."""
        fields = cls.model_fields.values()
        return frozenset(
            str(field.validation_alias) for field in fields if field.json_schema_extra == {"of_host": True}
        )

    @property
    def has_proxy(self) -> bool:
        """True if the TLS entrance is one of the services."""
        return PROXY in self.profiles.split(",")

    @field_validator("bind_address")
    @classmethod
    def _plain_on_loopback_only(cls, value: str, info: ValidationInfo) -> str:
        if PROXY not in info.data.get("profiles", "").split(","):
            if value == LOOPBACK:
                return value
            raise ValueError(
                "without TLS the stack listens on loopback only; add proxy to COMPOSE_PROFILES, or keep 127.0.0.1 and "
                "reach it with the `ssh -L` line that `make status` prints"
            )
        try:
            usable = not IPv4Address(value).is_unspecified and value != LOOPBACK
        except ValueError:
            usable = False
        if not usable:
            raise ValueError(
                "the profile proxy needs one IPv4 address of this host, because services have the same ports on "
                "127.0.0.1; use 127.0.0.2 for this host alone"
            )
        return value

    @field_validator("s3_endpoint")
    @classmethod
    def _reachable_from_containers(cls, value: str) -> str:
        if urlsplit(value).hostname in ("localhost", LOOPBACK, "::1"):
            raise ValueError("containers cannot reach a server on this host's loopback; use another address of it")
        return value

    @field_validator("acme_email")
    @classmethod
    def _domain_for_acme(cls, value: str, info: ValidationInfo) -> str:
        if value and not info.data.get("domain"):
            raise ValueError("certificates by ACME are for names; set DOMAIN to this host's")
        return value

    @field_validator("bucket_quotas")
    @classmethod
    def _readable_quotas(cls, value: str) -> str:
        bucket_quotas(value)
        return value

    @classmethod
    def load(cls, env_file: Path, **overrides: Any) -> Self:
        """Read `env_file`; variables of the environment take precedence, of which commands leave out those of shells.

        Raises:
            SettingsError: the file is missing, or a variable has an invalid value.
        """
        if not env_file.is_file():
            raise SettingsError(f"There is no {env_file}; run `make env` to write it.")
        return load_settings(cls, {"_env_file": env_file, **overrides})
