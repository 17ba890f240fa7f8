"""MLflow's webhooks in a rotation of their key, in a database that MLflow has created."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlflow")

from cryptography.fernet import Fernet

from mlplatform.compat import mlflow_rotation
from mlplatform.errors import SettingsError


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/mlflow.db"


@pytest.fixture
def registry(database: str) -> Any:
    from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore

    return SqlAlchemyStore(database)


def webhooks(database: str) -> dict[str, str | None]:
    import sqlalchemy

    statement = sqlalchemy.text("SELECT webhook_id, secret FROM webhooks")
    with sqlalchemy.create_engine(database).begin() as connection:
        return {row[0]: row[1] for row in connection.execute(statement)}


def add_webhook(database: str, name: str, secret: str | None) -> None:
    import sqlalchemy

    columns = "webhook_id, name, url, status, creation_timestamp, secret"
    row = sqlalchemy.text(f"INSERT INTO webhooks ({columns}) VALUES (:name, :name, 'https://a', 'ACTIVE', 0, :secret)")
    with sqlalchemy.create_engine(database).begin() as connection:
        connection.execute(row, {"name": name, "secret": secret})


def test_webhooks_are_encrypted_with_new_key(registry: Any, database: str) -> None:
    old, new = Fernet.generate_key().decode(), Fernet.generate_key().decode()
    add_webhook(database, "signed", Fernet(old).encrypt(b"a secret").decode())
    add_webhook(database, "open", None)
    for _ in range(2):
        assert mlflow_rotation.encrypt_webhooks_again(database, [new, old]) == 1
        found = webhooks(database)
        assert found["open"] is None
        assert Fernet(new).decrypt(str(found["signed"]).encode()) == b"a secret"


def test_webhook_of_unknown_key_changes_nothing(registry: Any, database: str) -> None:
    old, new = Fernet.generate_key().decode(), Fernet.generate_key().decode()
    add_webhook(database, "known", Fernet(old).encrypt(b"a secret").decode())
    add_webhook(database, "lost", Fernet(Fernet.generate_key()).encrypt(b"a secret").decode())
    before = webhooks(database)
    with pytest.raises(SettingsError, match="webhook lost was encrypted with another key"):
        mlflow_rotation.encrypt_webhooks_again(database, [new, old])
    assert webhooks(database) == before
