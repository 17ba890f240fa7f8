"""MLflow's webhooks in a rotation of their key, in a database that MLflow has created."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("mlflow")

import sqlalchemy
from cryptography.fernet import Fernet
from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore

from mlplatform_stack.bootstrap.rotation import encrypt_again


@pytest.fixture
def database(tmp_path: Path) -> str:
    """Address of a database with MLflow's tables."""
    address = f"sqlite:///{tmp_path}/mlflow.db"
    SqlAlchemyStore(address)
    return address


def webhooks(database: str) -> dict[str, str | None]:
    statement = sqlalchemy.text("SELECT webhook_id, secret FROM webhooks")
    with sqlalchemy.create_engine(database).begin() as connection:
        return {row[0]: row[1] for row in connection.execute(statement)}


def add_webhook(database: str, name: str, secret: str | None) -> None:
    columns = "webhook_id, name, url, status, creation_timestamp, secret"
    row = sqlalchemy.text(f"INSERT INTO webhooks ({columns}) VALUES (:name, :name, 'https://a', 'ACTIVE', 0, :secret)")
    with sqlalchemy.create_engine(database).begin() as connection:
        connection.execute(row, {"name": name, "secret": secret})


def test_webhooks_are_encrypted_with_new_key(database: str) -> None:
    old, new = Fernet.generate_key().decode(), Fernet.generate_key().decode()
    add_webhook(database, "signed", Fernet(old).encrypt(b"a secret").decode())
    add_webhook(database, "open", None)
    add_webhook(database, "lost", lost := Fernet(Fernet.generate_key()).encrypt(b"a secret").decode())
    for _ in range(2):
        assert encrypt_again(database, "webhooks", "secret", [new, old]) == (1, ["lost"])
        found = webhooks(database)
        assert found | {"signed": ""} == {"signed": "", "open": None, "lost": lost}
        assert Fernet(new).decrypt(str(found["signed"]).encode()) == b"a secret"
