"""Accounts and switches of other libraries, read from the environment."""

from pathlib import Path

import pytest

from mlplatform.errors import SettingsError
from mlplatform.settings.accounts import OtherTrackers, TrackingAccount

DATABRICKS = ("DATABRICKS_HOST", "DATABRICKS_CONFIG_FILE")


def test_account_is_passed_on_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {
        "MLFLOW_TRACKING_USERNAME": "ada",
        "MLFLOW_TRACKING_PASSWORD": "secret",
        "MLFLOW_TRACKING_INSECURE_TLS": "true",
        "MLFLOW_TRACKING_SERVER_CERT_PATH": "/etc/ca.pem",
    }
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    account = TrackingAccount.load()
    assert account.login == ("ada", "secret")
    assert account.environment() == variables
    assert "secret" not in repr(account)


def test_user_without_password_is_not_login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ada")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "")
    assert TrackingAccount.load().login is None


@pytest.mark.parametrize(("text", "value"), [("True", True), ("1", True), ("FALSE", False), ("0", False)])
def test_booleans_are_read_as_mlflow_reads_them(text: str, value: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_INSECURE_TLS", text)
    assert TrackingAccount.load().insecure_tls is value


def test_invalid_boolean_error_names_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_INSECURE_TLS", "maybe")
    with pytest.raises(SettingsError, match=r"MLFLOW_TRACKING_INSECURE_TLS='maybe'.*use true, false, 1 or 0"):
        TrackingAccount.load()


def test_databricks_config_file_has_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in DATABRICKS:
        monkeypatch.delenv(variable, raising=False)
    assert TrackingAccount.load().databricks_config == Path("~/.databrickscfg").expanduser()
    monkeypatch.setenv("DATABRICKS_CONFIG_FILE", "/shared/databrickscfg")
    assert TrackingAccount.load().databricks_config == Path("/shared/databrickscfg")


@pytest.mark.parametrize(("text", "value"), [("1", True), ("yes", True), ("on", True), ("false", False), ("", None)])
def test_comet_online_switch_is_parsed(text: str, value: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMET_START_ONLINE", text)
    assert OtherTrackers.load().comet_online is value


def test_change_within_process_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert OtherTrackers.load().wandb_mode == "offline"
    monkeypatch.setenv("WANDB_MODE", "online")
    assert OtherTrackers.load().wandb_mode == "online"
