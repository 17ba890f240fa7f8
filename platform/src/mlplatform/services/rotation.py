"""One-shot of `make rotate`, `python -m mlplatform.services.rotation` in storage-init (`stack/rotation.py` runs it).

It changes what a start could not do with the new files alone: the roles of Postgres, whose superuser still has the
present password, and what is encrypted in databases. The start that follows sets all other accounts. Each step connects
and decrypts with the new secret or the present one, so the program may be repeated.
"""

from __future__ import annotations

import sys
from contextlib import closing

from mlplatform.errors import SettingsError
from mlplatform.services import bootstrap
from mlplatform.services.encrypted_column import encrypt_again
from mlplatform.services.secret_files import NEXT, secret, values


def change_databases() -> None:
    """Set the roles of Postgres, and encrypt with the new keys what tables contain."""
    bootstrap.make_databases()
    if _changes("gateway_secrets_key") and _has_table("gateway", "secrets"):
        found, _ = encrypt_again(_address("gateway"), "secrets", "value", values("gateway_secrets_key"))
        print(f"Gateway: {found} secrets of people are encrypted with the new key.")
    if _changes("mlflow_key") and _has_table("mlflow", "webhooks"):
        found, lost = encrypt_again(_address("mlflow"), "webhooks", "secret", values("mlflow_key"))
        print(f"MLflow: the secrets of {found} webhooks are encrypted with the new key.")
        for webhook in lost:
            print(f"MLflow: the secret of webhook {webhook} has another key: delete that webhook, and add it again.")


def _changes(name: str) -> bool:
    return (NEXT / name).exists()


def _has_table(database: str, table: str) -> bool:
    with closing(bootstrap.connect_as_superuser(database)) as connection, connection.cursor() as cursor:
        return bootstrap.has_table(cursor, table)


def _address(database: str) -> str:
    """Return the URL of a database for the superuser, whose password has URL-safe characters only."""
    return f"postgresql+psycopg2://postgres:{secret('postgres_password').read_text()}@postgres/{database}"


if __name__ == "__main__":
    try:
        change_databases()
    except SettingsError as error:
        sys.exit(str(error))
