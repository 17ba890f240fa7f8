"""Table of MLflow's database that a rotation of its keys changes, as seen in mlflow 3.17.2.

MLflow has no command that replaces the key of webhooks (`EncryptedString` of its registry's models is read with one key
only). `tests/embedded/compat` creates the table with MLflow's own code.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlplatform.errors import SettingsError


def encrypt_webhooks_again(database: str, keys: Sequence[str]) -> int:
    """Encrypt the secrets of all webhooks with the first of the keys; each was encrypted with any of them.

    All rows change in one transaction.

    Args:
        database: SQLAlchemy URL.
        keys: keys of `cryptography.fernet`, the new one first.

    Raises:
        SettingsError: a secret was encrypted with another key.
    """
    import sqlalchemy
    from cryptography.fernet import Fernet as Cipher
    from cryptography.fernet import InvalidToken, MultiFernet

    ciphers = MultiFernet([Cipher(key) for key in keys])
    engine = sqlalchemy.create_engine(database)
    with engine.begin() as connection:
        rows = connection.execute(sqlalchemy.text("SELECT webhook_id, secret FROM webhooks WHERE secret IS NOT NULL"))
        found = [tuple(row) for row in rows]
        for webhook, secret in found:
            try:
                values = {"id": webhook, "secret": ciphers.rotate(secret.encode()).decode()}
            except InvalidToken:
                raise SettingsError(
                    f"The secret of webhook {webhook} was encrypted with another key than secrets/mlflow_key: "
                    "delete that webhook and add it again, then repeat `make rotate`."
                ) from None
            connection.execute(sqlalchemy.text("UPDATE webhooks SET secret = :secret WHERE webhook_id = :id"), values)
    engine.dispose()
    return len(found)
