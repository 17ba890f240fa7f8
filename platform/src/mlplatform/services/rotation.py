"""Steps of `make rotate` inside of the stack's one-shot services (`stack/rotation.py` runs them, in this order).

    python -m mlplatform.services.rotation storage             in storage-init: accounts of Postgres and buckets
    python -m mlplatform.services.rotation people              in storage-init: secrets of people
    python -m mlplatform.services.rotation tracking            in mlflow-migrate: accounts, webhooks, signatures
    python -m mlplatform.services.rotation forget-keys         in storage-init: former accounts of jobs
    python -m mlplatform.services.rotation forget-password     in mlflow-migrate: the former password of jobs

Each may be repeated. The new and the former secrets are in the folder that `secret_files` names.
"""

from __future__ import annotations

import sys

from mlplatform.compat import mlflow_rotation, mlflow_server
from mlplatform.credentials import read_mlflow_account
from mlplatform.errors import SettingsError
from mlplatform.services import bootstrap, minio, people_secrets
from mlplatform.services.secret_files import ROTATION, values
from mlplatform.settings.storage import StorageSettings

_DATABASE = "postgresql+psycopg2:///mlflow?service=mlflow"

_GATEWAY_DATABASE = "postgresql+psycopg2:///gateway?service=gateway"


def storage() -> None:
    """Set the accounts of Postgres and the object store; jobs get a user beside the one that running attempts have."""
    bootstrap.make_databases()
    bootstrap.make_buckets()


def people() -> None:
    """Encrypt the secrets of people with the new key."""
    found = people_secrets.encrypt_again(_GATEWAY_DATABASE, values("gateway_secrets_key"))
    print(f"Gateway: {found} secrets of people are encrypted with the new key.")


def tracking() -> None:
    """Set MLflow's accounts, and protect its webhooks and signatures by the new keys.

    Attempts that are running keep the password of jobs with which they started: it stays valid beside the new one.
    """
    accounts = bootstrap.mlflow_accounts()
    former = ROTATION / "former" / "mlflow_job"
    if former.exists():
        user, password = read_mlflow_account(former)
        accounts.append((mlflow_server.former_account(user), password))
    mlflow_server.set_accounts(accounts)
    print("MLflow: accounts have new passwords.")
    webhooks = mlflow_rotation.encrypt_webhooks_again(_DATABASE, values("mlflow_webhook_key"))
    print(f"MLflow: the secrets of {webhooks} webhooks are encrypted with the new key.")
    signed = mlflow_rotation.sign_again(_DATABASE, values("mlflow_signing_key"))
    print(f"MLflow: {signed} registered versions are signed with the new key.")


def forget_keys() -> None:
    """Remove the accounts that jobs had before a rotation."""
    admin, _ = minio.connect(StorageSettings.load().endpoint)
    for user in minio.remove_former_jobs(admin):
        print(f"Object store: removed the user {user}.")


def forget_password() -> None:
    """Refuse the password that jobs had before a rotation."""
    user, _ = bootstrap.mlflow_accounts()[2]
    if mlflow_server.remove_account(mlflow_server.former_account(user)):
        print("MLflow: the former password of jobs is refused.")


if __name__ == "__main__":
    _command = sys.argv[1]
    try:
        {
            "storage": storage,
            "people": people,
            "tracking": tracking,
            "forget-keys": forget_keys,
            "forget-password": forget_password,
        }[_command]()
    except SettingsError as error:
        sys.exit(str(error))
