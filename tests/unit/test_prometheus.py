"""Prometheus' configuration matches the compose files, and each alert names an action."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

CHECKOUT = Path(__file__).parents[2]


def load(path: str) -> dict[str, Any]:
    return dict(yaml.safe_load((CHECKOUT / path).read_text()))


SERVICES: dict[str, dict[str, Any]] = {}
for file in sorted((CHECKOUT / "compose").glob("*.yaml")):
    SERVICES |= yaml.safe_load(file.read_text()).get("services") or {}
JOBS = load("docker/prometheus/prometheus.yml")["scrape_configs"]
RULES = [
    rule
    for file in sorted((CHECKOUT / "docker/prometheus/rules").iterdir())
    for group in yaml.safe_load(file.read_text())["groups"]
    for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]


def networks(name: str) -> set[str]:
    """Networks of a service, including those of the service that it extends."""
    inherited = networks(SERVICES[name]["extends"]["service"]) if "extends" in SERVICES[name] else set()
    return inherited | set(SERVICES[name].get("networks", []))


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job["job_name"])
def test_prometheus_reaches_each_target(job: dict[str, Any]) -> None:
    targets = [target for config in job.get("static_configs", []) for target in config["targets"]]
    for name in {target.partition(":")[0] for target in targets} - {"localhost"}:
        assert name in SERVICES, f"{name} is not a service of compose/"
        assert networks(name) & networks("prometheus"), f"Prometheus shares no network with {name}"


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job["job_name"])
def test_prometheus_has_secrets_of_each_target(job: dict[str, Any]) -> None:
    parts = [job, *job.get("http_sd_configs", [])]
    files = {part.get("authorization", {}).get("credentials_file") for part in parts}
    files |= {part.get("basic_auth", {}).get("password_file") for part in parts}
    assert {Path(file).name for file in files - {None}} <= set(SERVICES["prometheus"]["secrets"])


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_alert_names_value_and_action(alert: dict[str, Any]) -> None:
    assert "{{ $" in alert["annotations"]["summary"]
    assert alert["annotations"]["action"]
    assert alert["labels"]["severity"] in ("critical", "warning")
