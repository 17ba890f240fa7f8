"""Settings of the stack on its host, read from `.env`."""

from __future__ import annotations

import re
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from mlplatform.durations import seconds_in
from mlplatform.errors import SettingsError
from mlplatform.settings.load import load_settings
from mlplatform.settings.storage import bucket_quotas

LOOPBACK = "127.0.0.1"

PROXY = "proxy"
"""Profile of the TLS entrance."""

NEVER = "never"
"""Value of a time that does not end."""

Accelerator = Literal["cpu", "cuda", "rocm"]
"""Kind of hardware on which jobs train."""

_DURATION = r"^([1-9]\d*[smhd])+$"

_RECEIVERS = ("email", "slack", "webhook")

_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30}


def _size(text: object) -> object:
    """Convert Docker's notation of a size ("512m", "8g", "8gb"), or a number of bytes, to bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *([bkmg]?)b?", str(text).lower())
    if not found:
        raise ValueError("a size is a number with a unit, such as 512m or 8g")
    return int(float(found[1]) * _UNITS[found[2]])


def _sized(default: str, variable: str) -> Any:
    """Return a field of type `Size` whose default is written as in `.env.example`."""
    return Field(default, validation_alias=variable)


Size = Annotated[int, BeforeValidator(_size)]
"""Bytes, in Docker's notation."""


class StackSettings(BaseSettings):
    """Settings of the stack on this host, from its `.env`."""

    model_config = SettingsConfigDict(extra="ignore", frozen=True, env_ignore_empty=True)

    version: str = Field(validation_alias="MLPLATFORM_VERSION")
    """Tag of the images that we build; `make env` keeps it at the checkout's version."""

    accelerator: Accelerator = Field("cpu", validation_alias="ACCELERATOR")
    """Kind of hardware, which selects the workers' devices and the exporters."""

    worker_layout: Literal["host", "gpu", "generated"] = Field("gpu", validation_alias="WORKER_LAYOUT")
    """One worker with all GPUs, two with one each, or the generated file for other counts."""

    worker_gpus: float = Field(0, ge=0, validation_alias="WORKER_GPUS")
    """GPUs that each worker declares to Ray."""

    worker_memory: Size = _sized("8g", "WORKER_MEMORY")
    """Memory limit of each worker."""

    worker_shm: Size = _sized("4g", "WORKER_SHM")
    """Shared memory of each worker, a part of its memory."""

    worker_object_store: Size = Field(10**9, validation_alias="WORKER_OBJECT_STORE")
    """Ray's object store on each worker, a part of its shared memory."""

    notebook_gpus: str = Field("", validation_alias="NOTEBOOK_GPUS")
    """GPUs that the notebook can use, comma-separated numbers."""

    notebook_memory: Size = _sized("8g", "NOTEBOOK_MEMORY")
    """Memory limit of the notebook."""

    notebook_shm: Size = _sized("2g", "NOTEBOOK_SHM")
    """Shared memory of the notebook, a part of its memory."""

    notebook_layout: Literal["shared", "generated"] = Field("shared", validation_alias="NOTEBOOK_LAYOUT")
    """One notebook for everybody, or one per person in the generated file."""

    notebook_idle: str = Field("2h", validation_alias="NOTEBOOK_IDLE")
    """Time after which JupyterLab of a person ends if nothing happens in it; `never`."""

    render_gid: str = Field("", validation_alias="RENDER_GID", pattern=r"^\d*$")
    """Id of the host's group that may use AMD's devices; empty if it is unknown or not needed."""

    torch_index: str = Field("", validation_alias="TORCH_INDEX_URL")
    """Index with other builds of torch for Ray's image; empty for that of the other packages."""

    prefix: str = Field("", validation_alias="STACK_PREFIX", pattern=r"^([a-z0-9][a-z0-9_.-]*)?$")
    """Prefix of every container's name, so that one host can run two stacks."""

    food11_volume: str = Field("food11", validation_alias="FOOD11_VOLUME")
    """Docker volume with the photos of Food-11, which the stacks of a host may share."""

    cluster_network: str = Field("10.213.76", validation_alias="CLUSTER_NETWORK", pattern=r"^(\d{1,3}\.){2}\d{1,3}$")
    """First three numbers of the addresses of Ray and of what jobs use."""

    profiles: str = Field("", validation_alias="COMPOSE_PROFILES")
    """Optional services, comma-separated."""

    bind_address: str = Field(LOOPBACK, validate_default=True, validation_alias="BIND_ADDRESS")
    """Address on which the TLS entrance publishes the ports; services publish theirs on loopback."""

    domain: str = Field("", validation_alias="DOMAIN", pattern=r"^([a-z0-9-]+(\.[a-z0-9-]+)*)?$")
    """Name of this host for the TLS entrance; services also have names below it."""

    acme_email: str = Field("", validation_alias="ACME_EMAIL", pattern=r"^([^@\s]+@[^@\s]+)?$")
    """Account for certificates by ACME; empty for those of our own authority."""

    https_port: int = Field(443, ge=1, le=65535, validation_alias="HTTPS_PORT")
    """Port of the services' names."""

    s3_endpoint: str = Field("", validation_alias="S3_ENDPOINT_URL", pattern=r"^(https?://[^\s/@]+)?$")
    """Address of another S3 server that replaces MinIO; empty for MinIO."""

    minio_image: str = Field("", validation_alias="MINIO_IMAGE")
    """Image of the S3 server; empty means the one that we build."""

    disk_needed: int = Field(20, ge=0, validation_alias="DISK_NEEDED_GB")
    """Free space on Docker's disk, in GB, below which the stack is not started."""

    backup_to: str = Field("", validation_alias="BACKUP_TO", pattern=r"^([^-].*)?$")
    """Folder of the host, `s3:...` or `rest:...` to which backups are made on a timer; empty for none."""

    backup_every_hours: float = Field(24, gt=0, validation_alias="BACKUP_EVERY_HOURS")
    """Hours from one of these backups to the next."""

    backup_keep_daily: int = Field(7, ge=0, validation_alias="BACKUP_KEEP_DAILY")
    """Days of which `make backup` keeps the last backup."""

    backup_keep_weekly: int = Field(4, ge=0, validation_alias="BACKUP_KEEP_WEEKLY")
    """Weeks of which it keeps the last one."""

    backup_keep_monthly: int = Field(6, ge=0, validation_alias="BACKUP_KEEP_MONTHLY")
    """Months of which it keeps the last one."""

    bucket_quotas: str = Field("", validation_alias="BUCKET_QUOTAS")
    """Limits of buckets; empty for none."""

    checkpoint_version_days: int = Field(1, ge=0, validation_alias="CHECKPOINT_VERSION_DAYS")
    """Days for which replaced and deleted checkpoints are kept; 0 for none."""

    version_days: int = Field(7, ge=1, validation_alias="VERSION_DAYS")
    """Days for which replaced and deleted objects of versioned buckets are kept."""

    checkpoints_keep_days: float | None = Field(None, gt=0, validation_alias="CHECKPOINTS_KEEP_DAYS")
    """Days after a job's end for which its checkpoints are kept; None: forever."""

    runs_keep_days: float | None = Field(None, gt=0, validation_alias="RUNS_KEEP_DAYS")
    """Days for which MLflow keeps deleted runs with their artifacts; None: forever."""

    alert_receivers: str = Field("", validation_alias="ALERT_RECEIVERS")
    """Kinds of receivers of alerts, comma-separated; empty for none."""

    alert_email_to: str = Field("", validation_alias="ALERT_EMAIL_TO")
    """Addresses that get alerts by mail, comma-separated."""

    alert_email_from: str = Field("", validation_alias="ALERT_EMAIL_FROM")
    """Sender of the mails."""

    alert_smtp_server: str = Field("", validation_alias="ALERT_SMTP_SERVER", pattern=r"^(.+:\d+)?$")
    """Mail server, `host:port`."""

    alert_smtp_user: str = Field("", validation_alias="ALERT_SMTP_USER")
    """Account on the mail server; empty for a server that asks for none."""

    alert_smtp_tls: Literal["required", "off"] = Field("required", validation_alias="ALERT_SMTP_TLS")
    """Encryption of the connection to the mail server; `off` also accepts a plain one."""

    alert_group_wait: str = Field("30s", validation_alias="ALERT_GROUP_WAIT", pattern=_DURATION)
    """Time in which alerts of one name are collected for one message."""

    alert_group_interval: str = Field("5m", validation_alias="ALERT_GROUP_INTERVAL", pattern=_DURATION)
    """Least time between two messages about alerts of one name."""

    alert_repeat_interval: str = Field("4h", validation_alias="ALERT_REPEAT_INTERVAL", pattern=_DURATION)
    """Time after which a message is sent again while its alert fires."""

    hub_port: int = Field(51820, ge=1, le=65535, validation_alias="HUB_PORT")
    """UDP port for the traffic of joined hosts, and TCP port while an invitation is open."""

    mlflow_port: int = Field(8000, ge=1, le=65535, validation_alias="MLFLOW_PORT")
    minio_port: int = Field(9000, ge=1, le=65535, validation_alias="MINIO_PORT")
    minio_console_port: int = Field(9001, ge=1, le=65535, validation_alias="MINIO_CONSOLE_PORT")
    ray_port: int = Field(8265, ge=1, le=65535, validation_alias="RAY_PORT")
    notebook_port: int = Field(8888, ge=1, le=65535, validation_alias="NOTEBOOK_PORT")
    prometheus_port: int = Field(9090, ge=1, le=65535, validation_alias="PROMETHEUS_PORT")
    grafana_port: int = Field(3000, ge=1, le=65535, validation_alias="GRAFANA_PORT")

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

    @field_validator("notebook_idle")
    @classmethod
    def _readable_time(cls, value: str) -> str:
        if value != NEVER:
            seconds_in(value)
        return value

    @field_validator("bucket_quotas")
    @classmethod
    def _readable_quotas(cls, value: str) -> str:
        bucket_quotas(value)
        return value

    @field_validator("alert_receivers")
    @classmethod
    def _known_receivers(cls, value: str) -> str:
        kinds = value.split(",") if value else []
        if not set(kinds) <= set(_RECEIVERS):
            raise ValueError(f"use {', '.join(_RECEIVERS)} or several of them, separated by commas")
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
