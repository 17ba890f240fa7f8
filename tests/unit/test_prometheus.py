"""Prometheus' configuration matches the compose files; alerts name an action, and each rule has a promtool test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from mlplatform.settings.stack import StackSettings
from mlplatform.stack.services import start_variables

CHECKOUT = Path(__file__).parents[2]


def load(path: str) -> dict[str, Any]:
    return dict(yaml.safe_load((CHECKOUT / path).read_text()))


def load_list(path: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load((CHECKOUT / path).read_text()))


SERVICES: dict[str, dict[str, Any]] = {}
for file in sorted((CHECKOUT / "compose").glob("*.yaml")):
    SERVICES |= yaml.safe_load(file.read_text()).get("services") or {}
CONFIG = load("docker/prometheus/prometheus.yml")
JOBS = CONFIG["scrape_configs"]
RULES = [
    rule
    for file in sorted((CHECKOUT / "docker/prometheus/rules").iterdir())
    for group in yaml.safe_load(file.read_text())["groups"]
    for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]
RECORDINGS = [rule for rule in RULES if "record" in rule]
# `promtool` is in Prometheus' image, so a stack test runs these.
TESTS = [
    test for file in sorted((CHECKOUT / "tests/rules").iterdir()) for test in yaml.safe_load(file.read_text())["tests"]
]
COMMAND = re.compile(r"`(make|mlplatform|docker|nvidia-smi) ")


def networks(name: str) -> set[str]:
    """Networks of a service, including those of the service that it extends."""
    inherited = networks(SERVICES[name]["extends"]["service"]) if "extends" in SERVICES[name] else set()
    return inherited | set(SERVICES[name].get("networks", []))


def listed(name: str) -> list[dict[str, Any]]:
    """Targets in a file; a stack without the service mounts a file that has none."""
    folder = CHECKOUT / "docker/prometheus/targets"
    (without,) = folder.glob(name.replace(".yml", ".*.yml"))
    assert yaml.safe_load(without.read_text()) == []
    return load_list(f"docker/prometheus/targets/{name}")


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job["job_name"])
def test_prometheus_reaches_each_target(job: dict[str, Any]) -> None:
    files = [Path(name).name for config in job.get("file_sd_configs", []) for name in config["files"]]
    configs = [*job.get("static_configs", []), *(entry for name in files for entry in listed(name))]
    targets = [target for config in configs for target in config["targets"]]
    for name in {target.partition(":")[0] for target in targets} - {"localhost"}:
        assert name in SERVICES, f"{name} is not a service of compose/"
        assert networks(name) & networks("prometheus"), f"Prometheus shares no network with {name}"


@pytest.mark.parametrize(
    ("only", "left"), [("", ["gateway:8265", "mlflow:8000"]), ("ray", ["gateway:8265"]), ("tracking", ["mlflow:8000"])]
)
def test_half_of_stack_has_no_target_in_other_half(tmp_path: Path, only: str, left: list[str]) -> None:
    (tmp_path / ".env").write_text("MLPLATFORM_VERSION=1\n")
    variables = start_variables(StackSettings.load(tmp_path / ".env"), only)
    mounted = [volume.split(":/targets/")[0] for volume in SERVICES["prometheus"]["volumes"] if ":/targets/" in volume]
    files = [re.sub(r"\$\{(\w+)\+(.*?)\}", lambda at: at[2] if at[1] in variables else "", file) for file in mounted]
    found = [entry for file in files if "minio" not in file for entry in load_list(f"compose/{file}")]
    assert [target for entry in found for target in entry["targets"]] == left


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job["job_name"])
def test_prometheus_has_secrets_of_each_target(job: dict[str, Any]) -> None:
    parts = [job, *job.get("http_sd_configs", [])]
    files = {part.get("authorization", {}).get("credentials_file") for part in parts}
    files |= {part.get("basic_auth", {}).get("password_file") for part in parts}
    assert {Path(file).name for file in files - {None}} <= set(SERVICES["prometheus"]["secrets"])


def test_jobs_can_neither_flood_prometheus_nor_forge_metrics_of_alerts() -> None:
    (ray,) = [job for job in JOBS if job["job_name"] == "ray"]
    assert 10_000 <= ray["sample_limit"] <= 100_000
    assert {name for name in ray if name.endswith("limit")} == {
        *("body_size_limit", "sample_limit", "label_limit", "label_name_length_limit", "label_value_length_limit")
    }
    (rule,) = ray["metric_relabel_configs"]
    assert (rule["source_labels"], rule["action"]) == (["__name__", "WorkerId"], "drop")
    read = {name for alert in RULES for name in re.findall(r"\bray_\w+", alert["expr"])}
    assert {"ray_cluster_active_nodes", "ray_node_disk_free", "ray_node_mem_used"} <= read
    for name in read:  # Prometheus anchors the expression and joins the labels' values with a semicolon
        assert re.fullmatch(rule["regex"], f"{name};0a1b"), name
        assert not re.fullmatch(rule["regex"], f"{name};"), name


@pytest.mark.parametrize("service", ["alertmanager", "postgres-exporter"])
def test_service_without_login_of_its_own_requires_password(service: str) -> None:
    assert "--web.config.file=/run/secrets/metrics_web" in SERVICES[service]["command"]
    assert "metrics_web" in SERVICES[service]["secrets"]
    assert "metrics_password" not in SERVICES[service]["secrets"], "only Prometheus has the password"


def test_prometheus_has_password_of_alertmanager() -> None:
    (manager,) = CONFIG["alerting"]["alertmanagers"]
    assert Path(manager["basic_auth"]["password_file"]).name in SERVICES["prometheus"]["secrets"]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_alert_names_value_and_action(alert: dict[str, Any]) -> None:
    assert "{{ $" in alert["annotations"]["summary"]
    assert COMMAND.search(alert["annotations"]["action"]), "the action names no command"
    assert alert["labels"]["severity"] in ("critical", "warning")


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_each_alert_is_tested_firing_and_silent(alert: dict[str, Any]) -> None:
    cases = [case for test in TESTS for case in test.get("alert_rule_test", []) if case["alertname"] == alert["alert"]]
    assert {bool(case["exp_alerts"]) for case in cases} == {True, False}, f"tests/rules/ lacks {alert['alert']}"


@pytest.mark.parametrize("rule", RECORDINGS, ids=lambda rule: f"{rule['record']}-{rule['labels']['source']}")
def test_each_recording_is_tested_with_its_source(rule: dict[str, Any]) -> None:
    expected = f'{rule["record"]}{{source="{rule["labels"]["source"]}"'
    samples = [
        sample["labels"]
        for test in TESTS
        for case in test.get("promql_expr_test", [])
        for sample in case["exp_samples"]
    ]
    assert any(sample.startswith(expected) for sample in samples), f"tests/rules/ lacks {expected}}}"
