"""MLflow's webhooks and signatures in a rotation of their keys, in databases that MLflow has created."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlflow")

from cryptography.fernet import Fernet

from mlplatform.compat import mlflow_rotation
from mlplatform.compat.mlflow_stores import signature
from mlplatform.contract import TAG_DIGEST, TAG_SIGNATURE
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


def test_only_valid_signatures_are_renewed(registry: Any, database: str) -> None:
    from mlflow.entities.model_registry import ModelVersionTag

    registry.create_registered_model("digits")
    for number, key in enumerate((b"former", b"forged"), start=1):
        made = registry.create_model_version("digits", f"mlflow-artifacts:/0/run/{number}")
        location = registry.get_model_version_download_uri("digits", made.version)
        for tag, value in ((TAG_DIGEST, "digest"), (TAG_SIGNATURE, signature(location, "digest", key))):
            registry.set_model_version_tag("digits", made.version, ModelVersionTag(tag, value))
    registry.create_model_version("digits", "mlflow-artifacts:/0/run/3")
    for _ in range(2):
        assert mlflow_rotation.sign_again(database, ["new\n", "former"]) == 1
        tags = [registry.get_model_version("digits", version).tags for version in ("1", "2", "3")]
        places = [registry.get_model_version_download_uri("digits", version) for version in ("1", "2")]
        assert tags[0][TAG_SIGNATURE] == signature(places[0], "digest", b"new")
        assert tags[1][TAG_SIGNATURE] == signature(places[1], "digest", b"forged")
        assert tags[2] == {}
