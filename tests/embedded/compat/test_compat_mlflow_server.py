"""Private names of the MLflow server that the package replaces or calls: a renamed one would expose or block a path."""

from __future__ import annotations

import inspect
import re
from importlib import resources
from pathlib import Path

import pytest

pytest.importorskip("mlflow")
pytest.importorskip("flask_wtf")


def test_server_offers_and_grants_no_direct_transfers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.server import handlers, server_info_api
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    assert handlers.build_server_info_payload is server_info_api.build_server_info_payload
    monkeypatch.setenv("_MLFLOW_SERVER_SERVE_ARTIFACTS", "true")
    monkeypatch.setenv("_MLFLOW_SERVER_FILE_STORE", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setattr(handlers, "_get_tracking_store", lambda: None)
    offers = {"multipart_downloads_enabled", "multipart_uploads_enabled"}
    for address, offered in (("s3://mlflow-artifacts", offers), ("served-s3://mlflow-artifacts", set())):
        files = get_artifact_repository(address)
        monkeypatch.setattr(handlers, "_artifact_repo", files)
        payload = handlers.build_server_info_payload()
        assert {name for name in offers if payload[name]} == offered
    for check in ("multipart_upload", "multipart_download", "presigned_upload", "presigned_download"):
        with pytest.raises(MlflowException, match="not supported") as refused:
            vars(handlers)[f"_validate_support_{check}"](files)
        assert refused.value.get_http_status_code() == 501, "clients fall back at 501 only"


def test_preferences_have_names_that_page_reads() -> None:
    from mlflow.server import app

    page = resources.files("mlplatform_gateway.mlflow.server").joinpath("first_page.html").read_text()
    preferences = re.findall(r'^ +"(.+)_v\d": .+,$', page, re.MULTILINE)
    assert len(preferences) == page.count("_v1")
    code = "".join(path.read_text() for path in Path(str(app.static_folder), "static/js").glob("*.js"))
    assert [name for name in preferences if f'"{name}"' not in code] == []


def test_routes_that_mlflow_does_not_know_are_for_administrators() -> None:
    from mlflow.environment_variables import MLFLOW_BASIC_AUTH_FAIL_CLOSED
    from mlflow.server import auth

    assert MLFLOW_BASIC_AUTH_FAIL_CLOSED.get() is True
    assert not auth._is_known_ungated_route("/metrics")
    assert not auth._is_known_ungated_route("/api/2.0/mlflow/mlplatform/expired")
    assert list(inspect.signature(auth.create_app).parameters) == ["app"]


def test_rows_that_name_places_exist() -> None:
    from mlflow.store.model_registry.dbmodels.models import SqlModelVersion
    from mlflow.store.tracking.dbmodels.models import SqlExperiment, SqlTraceTag

    assert {"source", "storage_location", "run_id"} <= set(SqlModelVersion.__table__.columns.keys())
    assert "artifact_location" in SqlExperiment.__table__.columns
    assert {"key", "value"} <= set(SqlTraceTag.__table__.columns.keys())


def test_account_store_and_configuration_exist() -> None:
    from mlflow.server import auth

    assert {"database_uri", "admin_username", "authorization_function"} <= set(auth.auth_config._fields)
    assert list(inspect.signature(auth.store.init_db).parameters)[:1] == ["db_uri"]
    assert list(inspect.signature(auth.store.has_user).parameters)[:1] == ["username"]
    assert list(inspect.signature(auth.store.create_user).parameters) == ["username", "password", "is_admin"]
    assert list(inspect.signature(auth.store.update_user).parameters)[:2] == ["username", "password"]


def test_stores_can_remove_what_was_deleted_for_good() -> None:
    from mlflow.server import handlers
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    assert callable(handlers._get_tracking_store)
    assert callable(handlers._get_model_registry_store)
    for name, argument in (
        *(("_hard_delete_run", "run_id"), ("_hard_delete_logged_model", "model_id")),
        *(("_get_deleted_runs", "older_than"), ("_get_deleted_logged_models", "older_than")),
    ):
        assert list(inspect.signature(getattr(SqlAlchemyStore, name)).parameters) == ["self", argument]
    assert list(inspect.signature(SqlAlchemyStore.get_logged_model).parameters) == ["self", "model_id", "allow_deleted"]
