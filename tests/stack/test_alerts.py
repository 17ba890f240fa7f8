"""Alerts reach people: by mail, Slack and webhook, when they begin and when they end."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import yaml
from alertmanager_example import EXAMPLE, uncommented
from host import SCRIPTS, Stack, run, wait_for

RECEIVER = "alert-receiver"
SMTP_PORT, HTTP_PORT = 8025, 8026
TO = "operators@example.org"
ALERT = "TargetDownAtOnce"
KINDS = {"email", "slack", "webhook"}


@contextmanager
def receiver(stack: Stack, password: str) -> Iterator[Callable[[], str]]:
    """Run receivers of all kinds on Alertmanager's network, which has no jobs; yield what they have printed so far."""
    # Not a bind mount: the script's folder may be closed to the image's user.
    script = (SCRIPTS / "alert_receiver.py").read_text()
    network = f"--network={stack.project}_metrics"
    container = ("docker", "run", "--detach", "--rm", f"--name={stack.container(RECEIVER)}", network, "--init")
    image = f"mlplatform-platform:{stack.settings.mlplatform_version}"
    run(*container, image, "python", "-c", script, str(SMTP_PORT), str(HTTP_PORT), "platform", password)

    def printed() -> str:
        return run("docker", "logs", stack.container(RECEIVER)).stdout

    try:
        wait_for(lambda: "listening" in printed(), "the receivers")
        yield printed
    finally:
        run("docker", "stop", "--timeout=0", stack.container(RECEIVER))


def configuration(address: str, token: str) -> str:
    """The example with all receivers, which are those of this test, and without waits."""
    text = uncommented(EXAMPLE.read_text())
    changes = {
        "smtp.example.org:587": f"{address}:{SMTP_PORT}",
        "smtp_require_tls: true": "smtp_require_tls: false",
        "ops@example.org, ada@example.org": TO,
        "https://hooks.slack.com/services/T0/B0/key": f"http://{address}:{HTTP_PORT}/slack/{token}",
        "https://alerts.example.org/hook": f"http://{address}:{HTTP_PORT}/{token}",
        "group_wait: 30s": "group_wait: 1s",
        "group_interval: 5m": "group_interval: 1s",
    }
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    return text


@contextmanager
def receivers_set(stack: Stack, files: dict[str, str]) -> Iterator[None]:
    """Write all receivers into `secrets/`, as an operator does, and apply that; undo it at the end."""
    before = {stack.root / "secrets" / name: stack.secret(name) for name in files}
    try:
        for name, text in files.items():
            (stack.root / "secrets" / name).write_text(text)
        stack.up()
        yield
    finally:
        for path, text in before.items():
            path.write_text(text)
        stack.up()


@contextmanager
def alert_without_delay(stack: Stack) -> Iterator[None]:
    """Give Prometheus a copy of its alert for services that are down, which waits neither 2 minutes nor 15 seconds."""
    rules = stack.root / "docker/prometheus/rules"
    groups = yaml.safe_load((rules / "alerts.yml").read_text())["groups"]
    rule = next(rule for group in groups for rule in group["rules"] if rule.get("alert") == "TargetDown")
    copy = {**rule, "alert": ALERT, "for": "0s", "expr": 'up{job="postgres"} == 0'}
    file = rules / "at_once.yml"
    file.write_text(json.dumps({"groups": [{"name": "at_once", "interval": "1s", "rules": [copy]}]}))
    try:
        reload_prometheus(stack)
        yield
    finally:
        file.unlink()
        reload_prometheus(stack)


def reload_prometheus(stack: Stack) -> None:
    # Docker never restarts a container that `docker kill` has signalled, whatever the signal.
    stack.execute("prometheus", "sh", "-c", "kill -HUP 1")


@pytest.mark.nightly
def test_mail_slack_and_webhook_get_alert_and_its_end(stack: Stack) -> None:
    password, token = secrets.token_hex(16), secrets.token_hex(16)
    files = {"mail_password": password, "alertmanager.yml": configuration(stack.container(RECEIVER), token)}
    with receiver(stack, password) as printed, receivers_set(stack, files), alert_without_delay(stack):

        def messages(status: str) -> dict[str, str]:
            """Text by kind of the messages that report the alert in this status."""
            lines = [json.loads(line) for line in printed().splitlines()[1:]]
            found = {line["kind"]: line for line in lines if line["title"] == f"[{status}] {ALERT}"}
            assert set(found) >= KINDS, lines
            assert found["email"]["to"] == [TO]
            return {kind: line["text"] for kind, line in found.items()}

        run("docker", "stop", stack.container("postgres-exporter"))
        try:
            begun = wait_for(lambda: messages("FIRING"), "the alert at each receiver", 60)
        finally:
            run("docker", "start", stack.container("postgres-exporter"))
        for text in begun.values():
            assert "postgres at postgres-exporter:9187 has not answered" in text
            assert "`make status`" in text, "the message does not name an action"
        assert f"http://prometheus.localhost:{stack.settings.prometheus_port}/graph" in begun["webhook"]
        wait_for(lambda: messages("RESOLVED"), "the alert's end at each receiver", 60)

        alertmanager = stack.container("alertmanager")
        logs = run("docker", "logs", alertmanager)
        shown = logs.stdout + logs.stderr + run("docker", "inspect", alertmanager).stdout
        assert password not in shown
        assert token not in shown
