"""Configuration of Alertmanager: the receivers of alerts, from the settings `ALERT_...` and files in `secrets/`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlplatform.errors import SettingsError
from mlplatform.files import atomic
from mlplatform.settings.stack import StackSettings

FILE = Path("docker/alertmanager/alertmanager.generated.yaml")
"""In the checkout; its folder is mounted into Alertmanager."""

_MOUNTED = "/run/secrets"

_SUBJECT = "[{{ .Status | toUpper }}] {{ .CommonLabels.alertname }}"

_TEXT = """{{ range .Alerts -}}
{{ if eq .Status "firing" }}Since {{ .StartsAt.Format "2006-01-02 15:04:05 MST" }}: {{ .Annotations.summary }}
{{ .Annotations.action }}
{{ else }}Ended at {{ .EndsAt.Format "2006-01-02 15:04:05 MST" }}: {{ .Annotations.summary }}
{{ end }}
{{ end }}"""
"""One paragraph per alert: time and summary, and what to do while it fires."""


def write_configuration(root: Path, settings: StackSettings) -> bool:
    """Write Alertmanager's configuration, unless the file already has this content.

    Args:
        root: folder of the checkout, with its `secrets/`.
        settings: settings of the stack.

    Returns:
        Whether the file was written.

    Raises:
        SettingsError: a receiver lacks a setting, or its file in `secrets/` still has to be filled in.
    """
    text = render(root / "secrets", settings)
    path = root / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    # Whatever the umask: the service reads it, and nobody but its owner changes it.
    path.parent.chmod(0o755)
    if path.exists() and path.read_text() == text:
        return False
    atomic.write(path, text)
    return True


def render(secrets: Path, settings: StackSettings) -> str:
    """Return Alertmanager's configuration: JSON, a subset of YAML. It names the files of secrets only."""
    receiver: dict[str, Any] = {"name": "operators"}
    for kind in settings.alert_receivers.split(",") if settings.alert_receivers else ():
        receiver[f"{kind}_configs"] = [{"send_resolved": True, **_KINDS[kind](secrets, settings)}]
    content = {
        "global": {"http_config": {"proxy_from_environment": True}},
        "route": {
            "receiver": receiver["name"],
            "group_by": ["alertname"],
            "group_wait": settings.alert_group_wait,
            "group_interval": settings.alert_group_interval,
            "repeat_interval": settings.alert_repeat_interval,
        },
        "receivers": [receiver],
    }
    return f"# Written by `make env` from the settings ALERT_... in .env.\n{json.dumps(content, indent=2)}\n"


def _email(secrets: Path, settings: StackSettings) -> dict[str, Any]:
    needed = {
        "ALERT_EMAIL_TO": settings.alert_email_to,
        "ALERT_EMAIL_FROM": settings.alert_email_from,
        "ALERT_SMTP_SERVER": settings.alert_smtp_server,
    }
    if missing := [variable for variable, value in needed.items() if not value]:
        raise SettingsError(f"ALERT_RECEIVERS has email, but {' and '.join(missing)} is empty; set it in .env.")
    account = {}
    if user := settings.alert_smtp_user:
        account = {"auth_username": user, "auth_password_file": _filled(secrets, "alert_smtp_password", "email")}
    return {
        "to": settings.alert_email_to,
        "from": settings.alert_email_from,
        "smarthost": settings.alert_smtp_server,
        "require_tls": settings.alert_smtp_tls == "required",
        "headers": {"Subject": _SUBJECT},
        "text": _TEXT,
        # Plain text only: the default page links to Alertmanager, which publishes no port.
        "html": "",
        **account,
    }


def _slack(secrets: Path, _: StackSettings) -> dict[str, Any]:
    return {
        "api_url_file": _filled(secrets, "alert_slack_url", "slack"),
        "title": _SUBJECT,
        "title_link": "",
        "text": _TEXT,
    }


def _webhook(secrets: Path, _: StackSettings) -> dict[str, Any]:
    return {"url_file": _filled(secrets, "alert_webhook_url", "webhook")}


_KINDS: dict[str, Callable[[Path, StackSettings], dict[str, Any]]] = {
    "email": _email,
    "slack": _slack,
    "webhook": _webhook,
}


def _filled(secrets: Path, name: str, kind: str) -> str:
    """Return where a container finds a secret that an operator fills in.

    Raises:
        SettingsError: nobody has.
    """
    if (secrets / name).read_text().startswith("#"):
        raise SettingsError(
            f"ALERT_RECEIVERS has {kind}, but secrets/{name} is not filled in; its text says what belongs there."
        )
    return f"{_MOUNTED}/{name}"
