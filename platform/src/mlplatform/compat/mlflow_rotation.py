"""Tables of MLflow's database that a rotation of its keys changes, as seen in mlflow 3.17.2.

MLflow has no command that replaces the key of webhooks (`EncryptedString` of its registry's models is read with one key
only). `tests/embedded/compat` creates the tables with MLflow's own code.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Sequence
from typing import Any

from mlplatform.compat.mlflow_stores import signature
from mlplatform.contract import TAG_DIGEST, TAG_SIGNATURE
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
                    f"The secret of webhook {webhook} was encrypted with another key than secrets/mlflow_webhook_key: "
                    "delete that webhook and add it again, then repeat `make rotate`."
                ) from None
            connection.execute(sqlalchemy.text("UPDATE webhooks SET secret = :secret WHERE webhook_id = :id"), values)
    engine.dispose()
    return len(found)


def sign_again(database: str, keys: Sequence[str]) -> int:
    """Sign every registered version with the first of the keys whose signature by one of them is valid.

    Other signatures stay as they are, and invalid.

    Args:
        database: SQLAlchemy URL.
        keys: as in the files of `mlflow_signing_key`, the new one first.

    Returns:
        Number of versions with a valid signature.
    """
    from mlflow.entities.model_registry import ModelVersionTag
    from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore

    registry: Any = SqlAlchemyStore(database)  # type: ignore[no-untyped-call]
    new, *former = [key.encode().strip() for key in keys]
    count = 0
    for version in _versions(registry):
        digest, signed = version.tags.get(TAG_DIGEST, ""), version.tags.get(TAG_SIGNATURE, "")
        location = registry.get_model_version_download_uri(version.name, version.version)
        wanted = signature(location, digest, new)
        accepted = [wanted, *(signature(location, digest, key) for key in former)]
        if not digest or not any(hmac.compare_digest(signed.encode(), one.encode()) for one in accepted):
            continue
        count += 1
        if signed != wanted:
            tag = ModelVersionTag(TAG_SIGNATURE, wanted)  # type: ignore[no-untyped-call]
            registry.set_model_version_tag(version.name, version.version, tag)
    return count


def _versions(registry: Any) -> Iterator[Any]:
    page = registry.search_model_versions()
    yield from page
    while page.token:
        page = registry.search_model_versions(page_token=page.token)
        yield from page
