"""Rotation of the key that encrypts people's secrets in the gateway's database (`gateway/people/secrets.py`)."""

from __future__ import annotations

from collections.abc import Sequence


def encrypt_again(database: str, keys: Sequence[str]) -> int:
    """Encrypt the secrets of all people with the first of the keys; return how many there are.

    Those that none of the keys has encrypted stay as they are: their owners see in `mlplatform secrets list` that they
    must set them again. All rows change in one transaction.

    Args:
        database: SQLAlchemy URL of the gateway's database.
        keys: keys of `cryptography.fernet`, the new one first.
    """
    import sqlalchemy
    from cryptography.fernet import Fernet, InvalidToken, MultiFernet

    ciphers = MultiFernet([Fernet(key.strip()) for key in keys])
    engine = sqlalchemy.create_engine(database, hide_parameters=True)
    update = sqlalchemy.text("UPDATE secrets SET value = :value WHERE person = :person AND name = :name")
    count = 0
    with engine.begin() as connection:
        rows = connection.execute(sqlalchemy.text("SELECT person, name, value FROM secrets")).all()
        for person, name, value in rows:
            try:
                encrypted = ciphers.rotate(value.encode()).decode()
            except InvalidToken:
                continue
            connection.execute(update, {"value": encrypted, "person": person, "name": name})
            count += 1
    engine.dispose()
    return count
