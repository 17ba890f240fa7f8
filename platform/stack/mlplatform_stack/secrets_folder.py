"""The stack's secrets: which files there are, what is in each, and how they are generated.

Every secret is a file in `secrets/` (folder 0700) in the format that its reader expects, so that no password
passes through a variable or a command line. The files are 0444 (0644 if an operator fills in a key), because Compose
mounts them with the mode they have on the host and the services run under different users. Two things keep other users
of the host out: the folder's mode, and that nobody has the user id of a service, with which the files could be read as
/proc/<pid>/root/run/secrets/... (`bootstrap/ownership.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

from mlplatform.errors import SettingsError
from mlplatform.files import atomic
from mlplatform.secrets.credentials import fernet_key, read_s3_account
from mlplatform_stack import declared
from mlplatform_stack.bootstrap.minio import RIGHTS, metrics_token
from mlplatform_stack.credential_files import (
    mlflow_account,
    password,
    postgres_service,
    prometheus_web,
    s3_account,
    to_fill_in,
)
from mlplatform_stack.settings import StackSettings

_ALERTMANAGER = Path(__file__).parents[3] / "docker/alertmanager/alertmanager.example.yml"
"""Configuration in the checkout from which the package is installed, on a host."""


def _plain(path: Path) -> None:
    path.write_text(password())


def _s3_to_fill_in(what: str) -> Callable[[Path], object]:
    advice = f"Remove the '#' of the next three lines, and fill in the account for {what}."
    return to_fill_in(advice, "[default]", "aws_access_key_id = KEY", "aws_secret_access_key = SECRET")


S3_ROLES = tuple(RIGHTS)
"""Roles with an account at the object store, in `s3_<role>`: made at ours, or by the operator of another server."""

# In the order of writing: a derived file comes after its source.
FILES: dict[str, Callable[[Path], object]] = {
    "postgres_password": _plain,
    **{f"postgres_{role}": partial(postgres_service, role) for role in ("mlflow", "gateway", "backup")},
    "postgres_exporter_password": _plain,
    "store_root_password": _plain,
    **{f"s3_{role}": partial(s3_account, role) for role in S3_ROLES},
    "store_prometheus_token": lambda path: metrics_token(path.with_name("store_root_password"), path),
    **{f"mlflow_{role}": partial(mlflow_account, role) for role in ("admin", "gateway", "job", "person")},
    "mlflow_key": fernet_key,
    "ray_token": _plain,
    "cluster_token": _plain,
    "log_shipper_token": _plain,
    "gateway_secrets_key": fernet_key,
    "notebook_token": _plain,
    "prometheus_password": _plain,
    "prometheus_web": lambda path: prometheus_web(path.with_name("prometheus_password"), path),
    "metrics_password": _plain,
    "metrics_web": lambda path: prometheus_web(path.with_name("metrics_password"), path),
    "grafana_password": _plain,
    "backup_password": _plain,
    "backup_s3": _s3_to_fill_in("backups to S3"),
    "s3_owner": _s3_to_fill_in("S3_ENDPOINT_URL that may create and empty the buckets"),
    # W&B's client finds it by NETRC, Comet's by COMET_CONFIG.
    "wandb_netrc": to_fill_in(
        "Remove the '#' of the next line, and replace KEY with your W&B key.",
        "machine api.wandb.ai login user password KEY",
    ),
    "comet_config": to_fill_in(
        "Remove the '#' of the next two lines, and replace KEY with your Comet key.", "[comet]", "api_key = KEY"
    ),
    "mail_password": to_fill_in("Replace this line by the password of the account at the mail server."),
    "alertmanager.yml": lambda path: path.write_text(_ALERTMANAGER.read_text()),
}

TO_FILL_IN = {"backup_s3", "s3_owner", "wandb_netrc", "comet_config", "mail_password", "alertmanager.yml"}
"""Files for keys and addresses of external services. The operator fills them in; until then they have no effect."""


def names(root: Path) -> list[str]:
    """Return the files of `secrets/`: those of `FILES`, and each other one that a compose file mounts, a password."""
    return [*(name for name in declared.secrets(root) if name not in FILES), *FILES]


def account_problems(folder: Path, settings: StackSettings) -> Iterator[str]:
    """Yield which files for accounts on another S3 server are missing or not filled in."""
    for role in ("owner", *S3_ROLES) if settings.s3_endpoint_url else ():
        try:
            read_s3_account(folder / f"s3_{role}")
        except SettingsError as error:
            yield str(error)


def write_missing(folder: Path, names: Collection[str] = tuple(FILES)) -> list[str]:
    """Generate the secrets that `folder` lacks; existing ones are not changed.

    Args:
        folder: of the secrets.
        names: which secrets; a derived one needs its source. One that `FILES` lacks is a password.

    Returns:
        The names of the files that were written.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    written = []
    for name in (*(name for name in names if name not in FILES), *(name for name in FILES if name in names)):
        path = folder / name
        # An empty file counts as missing: our object store would read it as "no password" and use a well-known default.
        if path.exists() and path.stat().st_size:
            continue
        with atomic.new_file(path) as draft:
            FILES.get(name, _plain)(draft)
            draft.chmod(0o644 if name in TO_FILL_IN else 0o444)
        written.append(name)
    return written
