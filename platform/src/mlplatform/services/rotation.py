"""Steps of `make rotate` inside of the stack's one-shot services (`stack/rotation.py` runs them, in this order).

    python -m mlplatform.services.rotation storage             in storage-init: accounts of Postgres and MinIO
    python -m mlplatform.services.rotation people              in storage-init: secrets of people
    python -m mlplatform.services.rotation tracking            in mlflow-migrate: accounts, webhooks
    python -m mlplatform.services.rotation forget-keys [jobs]  in storage-init: users and keys of others

Each may be repeated. The new and the former secrets are in the folder that `secret_files` names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from mlplatform.compat import mlflow_rotation, mlflow_server
from mlplatform.errors import SettingsError
from mlplatform.services import bootstrap, people_secrets
from mlplatform.services.access_keys import found_keys
from mlplatform.services.secret_files import values
from mlplatform.settings.storage import StorageSettings

_DATABASE = "postgresql+psycopg2:///mlflow?service=mlflow"

_GATEWAY_DATABASE = "postgresql+psycopg2:///gateway?service=gateway"


def storage() -> None:
    """Set the accounts of Postgres and MinIO; jobs get a user beside the one that running attempts have."""
    bootstrap.make_databases()
    bootstrap.make_buckets()


def people() -> None:
    """Encrypt the secrets of people with the new key."""
    found = people_secrets.encrypt_again(_GATEWAY_DATABASE, values("gateway_secrets_key"))
    print(f"Gateway: {found} secrets of people are encrypted with the new key.")


def tracking() -> None:
    """Set MLflow's accounts, and protect its webhooks by the new key."""
    mlflow_server.set_accounts(bootstrap.mlflow_accounts())
    print("MLflow: accounts have new passwords.")
    webhooks = mlflow_rotation.encrypt_webhooks_again(_DATABASE, values("mlflow_webhook_key"))
    print(f"MLflow: the secrets of {webhooks} webhooks are encrypted with the new key.")


def forget_keys(jobs: bool) -> None:
    """Remove users and access keys that the platform did not make and, if `jobs`, its former account of jobs."""
    _, admin, root = bootstrap.connect_to_minio(StorageSettings.load().endpoint)
    for key in list(found_keys(admin, bootstrap.minio_users(), root)):
        if jobs or not key.is_former:
            key.remove(admin)
            print(f"MinIO: removed the {key}.")
        else:
            print(f"MinIO: kept the {key} for attempts that are running.")


if __name__ == "__main__":
    _command, *_more = sys.argv[1:]
    _commands: dict[str, Callable[[], None]] = {
        "storage": storage,
        "people": people,
        "tracking": tracking,
        "forget-keys": lambda: forget_keys(bool(_more)),
    }
    try:
        _commands[_command]()
    except SettingsError as error:
        sys.exit(str(error))
