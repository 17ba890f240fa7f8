"""One-shot of `make rotate`, `python -m mlplatform_stack.bootstrap.rotation` in storage-init (`rotation.py` runs it).

It changes what a start could not do with the new files alone: the roles of Postgres, whose superuser still has the
present password, and what is encrypted in databases. The start that follows sets all other accounts. Each step connects
and decrypts with the new secret or the present one, so the program may be repeated.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing

from mlplatform.errors import SettingsError
from mlplatform_stack.bootstrap import databases as bootstrap
from mlplatform_stack.bootstrap.secret_files import NEXT, secret, values


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


def encrypt_again(database: str, table: str, column: str, keys: Sequence[str]) -> tuple[int, list[str]]:
    """Encrypt a column with the first of the keys. All rows change in one transaction.

    MLflow has no command for its key, which `EncryptedString` of its registry's models reads one of (mlflow 3.17.2).

    Args:
        database: SQLAlchemy URL.
        table: name of the table.
        column: name of its column with text that `cryptography.fernet` has encrypted, or NULL.
        keys: keys of `cryptography.fernet`, the new one first.

    Returns:
        Number of encrypted rows, and the identities of those that none of the keys has encrypted. These stay as they
        are: the gateway and MLflow could not read them before, either.
    """
    import sqlalchemy
    from cryptography.fernet import Fernet, InvalidToken, MultiFernet

    ciphers = MultiFernet([Fernet(key.strip()) for key in keys])
    engine = sqlalchemy.create_engine(database, hide_parameters=True)
    count, unreadable = 0, []
    with engine.begin() as connection:
        rows = sqlalchemy.Table(table, sqlalchemy.MetaData(), autoload_with=connection, resolve_fks=False)
        identity, text = list(rows.primary_key), rows.c[column]
        for *values, value in connection.execute(sqlalchemy.select(*identity, text).where(text.is_not(None))).all():
            try:
                encrypted = ciphers.rotate(value.encode()).decode()
            except InvalidToken:
                unreadable.append("/".join(map(str, values)))
                continue
            row = [key == one for key, one in zip(identity, values, strict=True)]
            connection.execute(rows.update().where(*row).values({column: encrypted}))
            count += 1
    engine.dispose()
    return count, unreadable


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
