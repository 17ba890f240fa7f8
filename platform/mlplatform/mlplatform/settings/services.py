"""Settings of `.env` for the services: which start, and how they treat jobs, messages, backups and disks."""

from __future__ import annotations

from typing import Literal

from mlplatform.settings.load import EnvironmentSettings
from mlplatform.settings.setting import Section, of_host, of_stack
from mlplatform.settings.storage import ObjectStore


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


class Jobs(Section):
    """Jobs.

    Keys of Weights & Biases and Comet are secrets: write them to secrets/wandb_netrc and secrets/comet_config, then run
    `make down up`. Without a key, jobs log to these services offline, in /shared.
    """

    job_starts: int = of_host(4, ge=1)
    """Jobs that may start at the same time; each start takes seconds of CPU time. Others wait in the order of the
    queue."""

    job_start_seconds: float = of_stack(1200, gt=0)
    """Seconds in which a job must start, its packages included; then the attempt has failed. Ray's own limit is 900."""

    grace_seconds: float = of_stack(120, gt=0)
    """Seconds that a job has to save its state when it is preempted: for another team, at its time limit, or because
    its GPUs are idle."""

    overdue_seconds: float = of_stack(259_200, gt=0)
    """Seconds of waiting after which a job is overdue: it precedes others beyond the shares, and later ones leave for
    it."""


class Messages(Section):
    """Messages."""

    webhook_schemes: str = of_stack("https")
    """Receivers of webhooks that an administrator or a person may add; by default only HTTPS at public addresses. For a
    receiver on the stack's own network or in your office, set https,http and true. A receiver's address may then be
    anything that the containers of MLflow and the gateway can reach."""

    webhook_private_addresses: Literal["true", "false"] = of_stack("false")

    mail_server: str = of_stack("", pattern=r"^(.+:\d+)?$")
    """Mail server with its port ("smtp.example.org:587"), for messages that people have sent about their jobs
    (`mlplatform notify alice@example.org`); empty for none. Alerts are configured in secrets/alertmanager.yml."""

    mail_sender: str = of_stack("")
    """Sender of these mails, and an account at the server, whose password is in secrets/mail_password, if it asks for
    one."""

    mail_user: str = of_stack("")

    mail_tls: Literal["required", "off"] = of_stack("required")
    """required, or off to send over plain connections too."""

    mail_domains: str = of_stack("")
    """Domains to which mails are sent, comma-separated; empty: that of MAIL_SENDER only."""


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


class Space(Section):
    """Disks and retention."""

    disk_reserve_gb: float = of_stack(2, ge=0)
    """Free space on the disks of the object store and the databases, in GB, below which new jobs are rejected. Running
    jobs continue. New jobs are accepted again once there is room."""

    checkpoints_keep_days: float | None = of_stack(None, gt=0)
    """Opt-in: days after the end of a job for which its checkpoints are kept; empty: forever. `make prune` lists what
    would be removed now."""

    runs_keep_days: float | None = of_stack(None, gt=0)
    """Opt-in: days after the deletion of a run in MLflow for which it and its artifacts are kept; empty: forever. Files
    of registered models, and their runs, are always kept."""


class Ports(Section):
    """Ports of the pages on this host."""

    mlflow_port: int = of_host(8000, ge=1, le=65535)

    s3_port: int = of_host(9000, ge=1, le=65535)
    """Of MinIO, with its console."""

    s3_console_port: int = of_host(9001, ge=1, le=65535)
    ray_port: int = of_host(8265, ge=1, le=65535)
    notebook_port: int = of_host(8888, ge=1, le=65535)
    grafana_port: int = of_host(3000, ge=1, le=65535)
    prometheus_port: int = of_host(9090, ge=1, le=65535)


class BackupSettings(Backups, EnvironmentSettings):
    """Settings of the services `backup` and `backup-timer`."""


class OfGateway(Ports, Space, ObjectStore, Messages, Jobs):
    """Settings that the gateway reads: `make up` passes it each of these sections whole."""
