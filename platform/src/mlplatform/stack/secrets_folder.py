"""The stack's secrets: which files there are, what is in each, and how they are generated.

Every secret is a file in `secrets/` (folder 0700) in the format that its reader expects, so that no password
passes through a variable or a command line. The files are 0444 (0644 if an operator fills in a key), because Compose
mounts them with the mode they have on the host and the services run under different users. Two things keep other users
of the host out: the folder's mode, and that nobody has the user id of a service, with which the files could be read as
/proc/<pid>/root/run/secrets/... (`services/ownership.py`).
"""

from __future__ import annotations

import configparser
from collections.abc import Callable
from pathlib import Path

from mlplatform.credentials import (
    comet_config,
    fernet_key,
    minio_metrics_token,
    mlflow_account,
    password,
    postgres_service,
    prometheus_web,
    read_s3_account,
    s3_account,
    s3_to_fill_in,
    to_fill_in,
    wandb_netrc,
)
from mlplatform.errors import SettingsError
from mlplatform.files import atomic
from mlplatform.settings.stack import StackSettings


def _plain(path: Path) -> None:
    path.write_text(password())


def _root_user(path: Path) -> None:
    path.write_text("root")


def _no_account(path: Path) -> None:
    path.write_text("# The nodes of Ray have this file instead of accounts with NODE_ACCOUNTS=no_account.\n")


_Write = Callable[[Path], None]

# In the order of writing: a derived file comes after its source.
FILES: dict[str, _Write] = {
    "postgres_password": _plain,
    "postgres_mlflow": lambda path: postgres_service("mlflow", path),
    "postgres_gateway": lambda path: postgres_service("gateway", path),
    "postgres_backup": lambda path: postgres_service("backup", path),
    "postgres_exporter_password": _plain,
    "minio_root_user": _root_user,
    "minio_root_password": _plain,
    "minio_mlflow": lambda path: s3_account("mlflow", path),
    "minio_gateway": lambda path: s3_account("gateway", path),
    "minio_attempts": lambda path: s3_account("attempts", path),
    "minio_people": lambda path: s3_account("people", path),
    "minio_job": lambda path: s3_account("job", path),
    "minio_person": lambda path: s3_account("person", path),
    "minio_backup": lambda path: s3_account("backup", path),
    "minio_prometheus": lambda path: s3_account("prometheus", path),
    "minio_prometheus_token": lambda path: minio_metrics_token(path.with_name("minio_prometheus"), path),
    "mlflow_admin": lambda path: mlflow_account("admin", path),
    "mlflow_gateway": lambda path: mlflow_account("gateway", path),
    "mlflow_job": lambda path: mlflow_account("job", path),
    "mlflow_person": lambda path: mlflow_account("person", path),
    "mlflow_prometheus_password": _plain,
    "mlflow_flask_key": _plain,
    "mlflow_webhook_key": fernet_key,
    "mlflow_signing_key": _plain,
    "no_account": _no_account,
    "ray_token": _plain,
    "cluster_token": _plain,
    "log_shipper_token": _plain,
    "gateway_prometheus_token": _plain,
    "gateway_secrets_key": fernet_key,
    "notebook_token": _plain,
    "prometheus_password": _plain,
    "prometheus_web": lambda path: prometheus_web(path.with_name("prometheus_password"), path),
    "metrics_password": _plain,
    "metrics_web": lambda path: prometheus_web(path.with_name("metrics_password"), path),
    "grafana_password": _plain,
    "backup_password": _plain,
    "backup_s3": lambda path: s3_to_fill_in("backups to S3", path),
    "external_s3": lambda path: s3_to_fill_in("S3_ENDPOINT_URL", path),
    "wandb_netrc": wandb_netrc,
    "comet_config": comet_config,
    "alert_smtp_password": lambda path: to_fill_in("the password of ALERT_SMTP_USER", path),
    "alert_slack_url": lambda path: to_fill_in("the address of an incoming webhook of Slack", path),
    "alert_webhook_url": lambda path: to_fill_in("the address that gets alerts as JSON", path),
}

TO_FILL_IN = {
    *("backup_s3", "external_s3", "wandb_netrc", "comet_config"),
    *("alert_smtp_password", "alert_slack_url", "alert_webhook_url"),
}
"""Files for keys and addresses of external services. The operator fills them in; until then they hold comments only."""


S3_ACCOUNTS = ("mlflow", "gateway", "job", "person", "backup")
"""Services with an account on the object store."""


def s3_file(settings: StackSettings, account: str) -> str:
    """Return the name of the file with a service's account on the object store, as `compose/store*.yaml` mount it."""
    if not settings.s3_endpoint:
        return f"minio_{account}"
    return f"external_s3_{account}" if settings.s3_separate_accounts else "external_s3"


def without_account(folder: Path, settings: StackSettings) -> list[str]:
    """Return the files for accounts on the external S3 server that are missing or not filled in."""
    if not settings.s3_endpoint:
        return []
    names = dict.fromkeys(["external_s3", *(s3_file(settings, account) for account in S3_ACCOUNTS)])
    return [name for name in names if not _has_account(folder / name)]


def _has_account(path: Path) -> bool:
    try:
        return all(read_s3_account(path))
    except (SettingsError, KeyError, configparser.Error):
        return False


def write_missing(folder: Path) -> list[str]:
    """Generate the secrets that `folder` lacks; existing ones are not changed.

    Returns:
        The names of the files that were written.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    written = []
    for name, write in FILES.items():
        path = folder / name
        # An empty file counts as missing: MinIO would read it as "no password" and fall back to its well-known default.
        if path.exists() and path.stat().st_size:
            continue
        with atomic.new_file(path) as draft:
            write(draft)
            draft.chmod(0o644 if name in TO_FILL_IN else 0o444)
        written.append(name)
    return written
