"""All settings of `.env`: the sections that only this host and its verbs read, and the checks of one by another."""

from __future__ import annotations

from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator

from mlplatform.errors import SettingsError
from mlplatform.settings.load import EnvironmentSettings, load_settings
from mlplatform.settings.services import Jobs, Messages, ObjectStore, Space, StorePort
from mlplatform.settings.setting import Section, Size, of_host, of_stack

LOOPBACK = "127.0.0.1"

PROXY = "proxy"
"""Profile of the TLS entrance."""

Accelerator = Literal["cpu", "cuda", "rocm"]
"""Kind of hardware on which jobs train."""


class Names(Section):
    """Version and names."""

    mlplatform_version: str = of_host(...)
    """Tag of the images that we build; `make env` keeps it at the version of this checkout."""

    stack_prefix: str = of_host("", pattern=r"^([a-z0-9][a-z0-9_.-]*)?$")
    """Prefix of every container's name, so that one host can run two stacks; end it with a dash: "blue-"."""

    food11_volume: str = of_host("food11")
    """Docker volume with the photos of Food-11, which the stacks of a host may share. `make data` fills it, no verb
    deletes it."""


class Hardware(Section):
    """Hardware.

    `make env` sizes memory, shared memory and the object store for this host. Services other than these have fixed
    memory limits (`mem_limit` in compose/).
    """

    accelerator: Accelerator = of_host("cpu")
    """cpu, cuda (NVIDIA) or rocm (AMD): selects the workers' devices and the exporters."""

    worker_layout: Literal["host", "gpu", "generated"] = of_host("gpu")
    """host: one worker with all GPUs. gpu: two workers with one GPU each (with cpu: two workers without GPUs).
    generated: one worker per GPU for any other count, in a file that `make env` writes."""

    worker_cpus: int = of_host(8, ge=1)
    """CPUs that each worker declares to Ray. Jobs reserve them, nothing enforces them. 8, as common tutorials request
    8."""

    worker_gpus: float = of_host(0, ge=0)
    """GPUs that each worker declares to Ray. `make env` sets the number it detects; 1 on a host without GPUs simulates
    one."""

    worker_memory: Size = of_host("8g")
    """Memory limit of each worker."""

    worker_shm: Size = of_host("4g")
    """Shared memory of each worker, which data loaders use and which counts towards the limit."""

    worker_object_store: Size = of_host(10**9)
    """Bytes of Ray's object store on each worker, a part of the shared memory."""

    ray_head_memory: Size = of_host("4g")
    """Memory limit of Ray's head."""

    warm_start: Literal["0", "1"] = of_stack("1")
    """Fork the processes of jobs from one that has imported torch, Lightning, MLflow and Ray, which takes 1 GB on each
    worker; 0: each process imports them itself."""

    environments_gb: float = of_host(10, gt=0)
    """GB on each worker for packages that jobs add to the image's: as many each for projects with a uv.lock, lists of
    pip and lists of uv. Beyond it, those that no job uses are removed."""

    open_files: int = of_host(65536, ge=1)
    """Limit of open files of each Ray process and of the notebook; `make env` lowers it to that of the host's Docker
    engine."""

    notebook_shm: Size = of_host("2g")
    """Shared memory of the notebook, which counts towards its limit."""

    notebook_memory: Size = of_host("8g")
    """Memory limit of the notebook."""

    dev_idle_seconds: int = of_host(7200, ge=0)
    """Seconds without connection and computation after which a dev environment ends; 0 for never."""

    render_gid: str = of_host("", pattern=r"^\d*$")
    """Id of the host's group `render` (rocm only); `make env` looks it up."""


class Services(Section):
    """Services."""

    compose_profiles: str = of_host("", examples=["tracking,ray,notebook,monitoring,grafana"])
    """Optional services, comma-separated: tracking (MLflow), ray, notebook, monitoring (Prometheus, Alertmanager,
    exporters), grafana, gpu-metrics (the exporter for cuda or rocm), hosts (`make host-token` adds it), proxy (TLS on
    BIND_ADDRESS)."""

    mlflow_workers: int = of_stack(2, ge=1)
    """Processes of the MLflow server."""

    notebook_user: str = of_host("")
    """Name of the person who uses the notebook, which its jobs and runs show as their user; `make env` sets who runs
    it. `export MLPLATFORM_USER=name` in a terminal names somebody else there."""

    prometheus_retention: str = of_stack("15d")
    """Time for which Prometheus keeps its measurements, as 15d or 36h."""

    disk_needed_gb: int = of_host(20, ge=0)
    """Free space that `make up` requires on Docker's disk, in GB; the images take 12."""


class Addresses(Section):
    """Addresses."""

    cluster_network: str = of_host("10.213.76", pattern=r"^(\d{1,3}\.){2}\d{1,3}$")
    """First three numbers of the addresses of Ray and of what jobs use. Two stacks on one host, and the office network,
    need different ones. Another machine that joins gets an address of the same network."""

    bind_address: str = of_host(LOOPBACK, validate_default=True)
    """Services publish their ports on loopback, in plain HTTP; `make status` prints the ssh command for a laptop. With
    the profile `proxy`: an address of this host, or 127.0.0.2 for this host alone, on which the same ports speak TLS.
    """

    domain: str = of_host("", pattern=r"^([a-z0-9-]+(\.[a-z0-9-]+)*)?$")
    """Name of this host for TLS, if DNS has it and the names below it (mlflow.DOMAIN, ray.DOMAIN, ...). The latter are
    served on HTTPS_PORT. Certificates are our own authority's, or with a mail address in ACME_EMAIL those of Let's
    Encrypt, which must reach port 443."""

    acme_email: str = of_host("", pattern=r"^([^@\s]+@[^@\s]+)?$")
    https_port: int = of_host(443, ge=1, le=65535)

    hub_port: int = of_host(51820, ge=1, le=65535)
    """UDP, for the encrypted traffic of hosts that have joined. On all addresses."""


class Ports(StorePort):
    """Ports of the pages on this host; S3_PORT is that of MinIO."""

    s3_console_port: int = of_host(9001, ge=1, le=65535)
    mlflow_port: int = of_host(8000, ge=1, le=65535)
    ray_port: int = of_host(8265, ge=1, le=65535)
    notebook_port: int = of_host(8888, ge=1, le=65535)
    grafana_port: int = of_host(3000, ge=1, le=65535)
    prometheus_port: int = of_host(9090, ge=1, le=65535)


class Images(Section):
    """Images and builds."""

    postgres_image: str = of_host("")
    """Other images for the services, from your own registry for instance; empty means the tag in compose/, with the
    digest in compose/images.lock. S3_IMAGE is MinIO's."""

    s3_image: str = of_host("")
    prometheus_image: str = of_host("")
    alertmanager_image: str = of_host("")
    postgres_exporter_image: str = of_host("")
    grafana_image: str = of_host("")
    gpu_exporter_image: str = of_host("")

    pip_index_url: str = of_host("")
    """Mirrors for builds; jobs also install their packages from the first. Empty means the public ones. TORCH_INDEX_URL
    is an index with other builds of torch: rocm requires one, cuda needs one for drivers older than 580.

    Behind a proxy: set HTTP_PROXY, HTTPS_PROXY and NO_PROXY here, in the shell or in Docker's client configuration.
    Builds and containers use them, except for the stack's own names. A proxy on this host needs an address that
    containers reach, which 127.0.0.1 is not. The authority of a proxy that inspects TLS goes into images/ca/ (README.md
    there)."""

    torch_index_url: str = of_host("")
    goproxy: str = of_host("")


class Backups(Section):
    """Backups."""

    backup_to: str = of_host("", pattern=r"^([^-].*)?$")
    """Target of backups that are made while the stack runs: a folder, better on another disk, rest:https://server/, or
    s3:https://server/bucket with its account in secrets/backup_s3. Empty: only `make backup` makes some; to end the
    timer, run `make down up`."""

    backup_every_hours: float = of_stack(24, gt=0)
    """Hours from one complete backup to the next. A failed one is repeated after an hour."""

    backup_keep_daily: int = of_stack(7, ge=0)
    """Backups that are kept at a folder or server: the last one of each of so many days, weeks and months; 0 for all
    three keeps every backup."""

    backup_keep_weekly: int = of_stack(4, ge=0)
    backup_keep_monthly: int = of_stack(6, ge=0)


# The sections of `.env.example`, from its last one to its first: pydantic begins with the fields of the last base.
class StackSettings(Images, Ports, Addresses, Space, ObjectStore, Backups, Messages, Jobs, Services, Hardware, Names):
    """Settings of the stack on this host, from its `.env`."""

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
        return PROXY in self.compose_profiles.split(",")

    @field_validator("bind_address")
    @classmethod
    def _plain_on_loopback_only(cls, value: str, info: ValidationInfo) -> str:
        if PROXY not in info.data.get("compose_profiles", "").split(","):
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

    @field_validator("s3_endpoint_url")
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

    @classmethod
    def load(cls, env_file: Path, **overrides: Any) -> Self:
        """Read `env_file`; variables of the environment take precedence, of which commands leave out those of shells.

        Raises:
            SettingsError: the file is missing, or a variable has an invalid value.
        """
        if not env_file.is_file():
            raise SettingsError(f"There is no {env_file}; run `make env` to write it.")
        return load_settings(cls, {"_env_file": env_file, **overrides})


class StorageSettings(ObjectStore, EnvironmentSettings):
    """Settings of the services `storage-init`, `backup` and `restore`."""

    endpoint: str = Field(validation_alias="AWS_ENDPOINT_URL")
    """Address of the object store, be it the stack's own or S3_ENDPOINT_URL."""


class BackupSettings(Backups, EnvironmentSettings):
    """Settings of the services `backup` and `backup-timer`."""
