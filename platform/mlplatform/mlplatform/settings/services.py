"""Sections of `.env` that the gateway reads too: jobs, messages, the object store, disks."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import field_validator

from mlplatform.settings.setting import Section, of_host, of_stack

BUCKETS = ("mlflow-artifacts", "ray", "datasets", "jobs")

_UNITS = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def quotas_of(text: str) -> dict[str, int]:
    """Convert "ray=500g,datasets=2t" to bytes by bucket.

    Raises:
        ValueError: a part has another form, or names no bucket.
    """
    quotas = {}
    for part in filter(None, text.split(",")):
        found = re.fullmatch(r"([a-z-]+)=(\d+)([kmgt])b?", part.strip().lower())
        if not found or found[1] not in BUCKETS:
            raise ValueError(
                f"'{part}' is not a quota: write BUCKET=SIZE, as in ray=500g; buckets: {', '.join(BUCKETS)}"
            )
        quotas[found[1]] = int(found[2]) * _UNITS[found[3]]
    return quotas


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
    it. After a sixth, later ones of its team leave the team's share to it."""


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


class ObjectStore(Section):
    """Object store."""

    s3_endpoint_url: str = of_host("", pattern=r"^(https?://[^\s/@]+)?$")
    """Another S3 server instead of MinIO, such as https://s3.example.org, for a new stack. Its operator writes an
    account per role into secrets/s3_owner, s3_mlflow, s3_gateway, s3_jobs, s3_people and s3_backup, with the rights in
    docs/operating.md. MinIO is then not started, BUCKET_QUOTAS and DISK_RESERVE_GB do not apply to that server, and its
    region must be us-east-1."""

    # A string for the environment, which pydantic-settings would otherwise read as JSON.
    bucket_quotas: str = of_stack("")
    """Limits of buckets, such as ray=500g,datasets=2t; empty for none. MinIO counts every few minutes, so a bucket can
    grow a little beyond its limit. Buckets: mlflow-artifacts, ray (checkpoints), datasets, jobs (packages and logs)."""

    version_days: int = of_stack(7, ge=1)
    """Days for which artifacts, data sets and packages that were replaced or deleted can be recovered; they take space
    until then."""

    checkpoint_version_days: int = of_stack(1, ge=0)
    """Days for which checkpoints can be, 0 for none; `make prune` removes them earlier."""

    @field_validator("bucket_quotas")
    @classmethod
    def _readable_quotas(cls, value: str) -> str:
        quotas_of(value)
        return value


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


class StorePort(Section):
    """Port of the object store on this host, which the gateway names to clients."""

    s3_port: int = of_host(9000, ge=1, le=65535)


class OfGateway(StorePort, Space, ObjectStore, Messages, Jobs):
    """Settings that the gateway reads: `make up` passes it each of these sections whole."""
