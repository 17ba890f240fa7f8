"""Alertmanager's configuration: the shipped example sends nothing, and has each receiver as a comment."""

import re
from pathlib import Path

import yaml
from alertmanager_example import EXAMPLE, uncommented

from mlplatform_stack import secrets_folder

CHECKOUT = Path(__file__).parents[3]


def test_nobody_gets_alerts_before_receivers_are_edited(tmp_path: Path) -> None:
    secrets_folder.write_missing(tmp_path)
    config = yaml.safe_load((tmp_path / "alertmanager.yml").read_text())
    assert config["receivers"] == [{"name": config["route"]["receiver"]}]


def test_each_receiver_of_example_gets_alerts_and_their_end() -> None:
    config = yaml.safe_load(uncommented(EXAMPLE.read_text()))
    (receiver,) = config["receivers"]
    assert receiver["name"] == config["route"]["receiver"]
    assert receiver.keys() == {"name", "email_configs", "slack_configs", "webhook_configs"}
    kinds = [entries for kind, entries in receiver.items() if kind != "name"]
    assert all(entry["send_resolved"] for (entry,) in kinds)
    assert config["global"]["smtp_require_tls"] is True


def test_alertmanager_reads_files_that_example_names() -> None:
    service = yaml.safe_load((CHECKOUT / "compose/monitoring.yaml").read_text())["services"]["alertmanager"]
    config = yaml.safe_load(uncommented(EXAMPLE.read_text()))
    assert "--config.file=/run/secrets/alertmanager.yml" in service["command"]
    assert {"alertmanager.yml", Path(config["global"]["smtp_auth_password_file"]).name} <= set(service["secrets"])
    assert f"../{EXAMPLE.parent.relative_to(CHECKOUT)}:/etc/alertmanager:ro" in service["volumes"]
    (templates,) = config["templates"]
    defined = set(re.findall(r'define "([\w.]+)"', (EXAMPLE.parent / Path(templates).name).read_text()))
    assert set(re.findall(r'template "([\w.]+)"', EXAMPLE.read_text())) == defined


def test_start_restarts_alertmanager_with_changed_configuration() -> None:
    service = yaml.safe_load((CHECKOUT / "compose/monitoring.yaml").read_text())["services"]["alertmanager"]
    assert "${ALERTS_DIGEST:-}" in service["labels"]["mlplatform.alerts"]
