"""Alertmanager's configuration: the receivers that the settings name, and no secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from mlplatform.errors import SettingsError
from mlplatform.settings.stack import StackSettings
from mlplatform.stack import alerting, secrets_folder

MAIL = {
    "ALERT_EMAIL_TO": "ops@example.org,ada@example.org",
    "ALERT_EMAIL_FROM": "platform@example.org",
    "ALERT_SMTP_SERVER": "smtp.example.org:587",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with generated secrets."""
    secrets_folder.write_missing(tmp_path / "secrets")
    return tmp_path


def settings(root: Path, **variables: str) -> StackSettings:
    lines = [f"{name}={value}" for name, value in {"MLPLATFORM_VERSION": "1", **variables}.items()]
    (root / ".env").write_text("\n".join(lines))
    return StackSettings.load(root / ".env")


def configured(root: Path, **variables: str) -> dict[str, Any]:
    """The configuration as Alertmanager reads it."""
    alerting.write_configuration(root, settings(root, **variables))
    return dict(yaml.safe_load((root / alerting.FILE).read_text()))


def test_without_settings_nobody_gets_alerts(root: Path) -> None:
    config = configured(root)
    assert config["receivers"] == [{"name": config["route"]["receiver"]}]


def test_each_receiver_gets_alerts_and_their_end(root: Path) -> None:
    for name in ("alert_smtp_password", "alert_slack_url", "alert_webhook_url"):
        (root / "secrets" / name).chmod(0o644)
        (root / "secrets" / name).write_text(f"http://secret-of-{name}/\n")
    config = configured(root, ALERT_RECEIVERS="email,slack,webhook", ALERT_SMTP_USER="platform", **MAIL)
    (receiver,) = config["receivers"]
    assert receiver["name"] == config["route"]["receiver"]
    kinds = {kind: receiver[f"{kind}_configs"] for kind in ("email", "slack", "webhook")}
    assert all(entry["send_resolved"] for (entry,) in kinds.values())
    (email,) = kinds["email"]
    assert (email["to"], email["from"], email["smarthost"]) == tuple(MAIL.values())
    assert email["require_tls"] is True
    assert (email["auth_username"], email["auth_password_file"]) == ("platform", "/run/secrets/alert_smtp_password")
    assert kinds["slack"][0]["api_url_file"] == "/run/secrets/alert_slack_url"
    assert kinds["webhook"][0]["url_file"] == "/run/secrets/alert_webhook_url"
    assert "secret-of" not in (root / alerting.FILE).read_text()


def test_mail_server_without_account_needs_no_password(root: Path) -> None:
    (receiver,) = configured(root, ALERT_RECEIVERS="email", ALERT_SMTP_TLS="off", **MAIL)["receivers"]
    assert "auth_password_file" not in receiver["email_configs"][0]
    assert receiver["email_configs"][0]["require_tls"] is False


def test_times_of_messages_are_settings(root: Path) -> None:
    times = {"ALERT_GROUP_WAIT": "1s", "ALERT_GROUP_INTERVAL": "2m", "ALERT_REPEAT_INTERVAL": "1d"}
    route = configured(root, **times)["route"]
    assert [route[name] for name in ("group_wait", "group_interval", "repeat_interval")] == list(times.values())


def test_configuration_follows_settings_and_is_readable(root: Path) -> None:
    assert alerting.write_configuration(root, settings(root))
    assert not alerting.write_configuration(root, settings(root))
    assert alerting.write_configuration(root, settings(root, ALERT_RECEIVERS="email", **MAIL))
    assert (root / alerting.FILE).stat().st_mode & 0o777 == 0o644, "Alertmanager runs as another user"


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"ALERT_RECEIVERS": "email,pager"}, "ALERT_RECEIVERS='email,pager'.*use email, slack, webhook"),
        ({"ALERT_RECEIVERS": "email"}, "ALERT_EMAIL_TO and ALERT_EMAIL_FROM and ALERT_SMTP_SERVER is empty; set it in"),
        ({"ALERT_RECEIVERS": "slack"}, "ALERT_RECEIVERS has slack, but secrets/alert_slack_url is not filled in"),
        ({"ALERT_RECEIVERS": "webhook"}, "ALERT_RECEIVERS has webhook, but secrets/alert_webhook_url is not filled in"),
        (
            {"ALERT_RECEIVERS": "email", "ALERT_SMTP_USER": "platform", **MAIL},
            "ALERT_RECEIVERS has email, but secrets/alert_smtp_password is not filled in",
        ),
        ({"ALERT_SMTP_SERVER": "smtp.example.org"}, "ALERT_SMTP_SERVER='smtp.example.org'"),
        ({"ALERT_GROUP_WAIT": "soon"}, "ALERT_GROUP_WAIT='soon'"),
    ],
    ids=lambda value: "" if isinstance(value, str) else ",".join(value),
)
def test_incomplete_setting_is_named_and_nothing_written(root: Path, variables: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        alerting.write_configuration(root, settings(root, **variables))
    assert not (root / alerting.FILE).exists()


def test_alertmanager_reads_the_written_file() -> None:
    compose = yaml.safe_load((Path(__file__).parents[3] / "compose/monitoring.yaml").read_text())
    alertmanager = compose["services"]["alertmanager"]
    assert f"../{alerting.FILE.parent}:/etc/alertmanager:ro" in alertmanager["volumes"]
    assert f"--config.file=/etc/alertmanager/{alerting.FILE.name}" in alertmanager["command"]
    receivers = {"alert_smtp_password", "alert_slack_url", "alert_webhook_url"}
    assert receivers | {"metrics_web"} == set(alertmanager["secrets"])
    # Compose restarts it if one of these changes.
    alerts = {str(field.validation_alias) for field in StackSettings.model_fields.values()}
    named = {name for name in alerts if name.startswith("ALERT_")}
    assert all(f"${{{name}:-" in alertmanager["labels"]["mlplatform.alerts"] for name in named)
