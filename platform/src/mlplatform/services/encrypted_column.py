"""Rotation of the key that encrypts a column: people's secrets (`gateway/people/secrets.py`), and MLflow's webhooks.

MLflow has no command for its key, which `EncryptedString` of its registry's models reads one of (mlflow 3.17.2).
"""

from __future__ import annotations

from collections.abc import Sequence


def encrypt_again(database: str, table: str, column: str, keys: Sequence[str]) -> tuple[int, list[str]]:
    """Encrypt a column with the first of the keys. All rows change in one transaction.

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
