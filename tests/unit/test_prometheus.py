"""Prometheus' configuration matches the compose files; alerts name an action, and each rule has a promtool test."""

import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_files import checkout

from mlplatform_stack import declared, generated
from mlplatform_stack.services import GPU_PROFILES
from mlplatform_stack.settings import StackSettings

CHECKOUT = Path(__file__).parents[2]


def load(path: str) -> dict[str, Any]:
    return dict(yaml.safe_load((CHECKOUT / path).read_text()))


def stack(folder: Path, **values: str) -> tuple[dict[str, declared.Service], list[dict[str, Any]]]:
    """Services of a stack, and what its Prometheus scrapes."""
    root = checkout(folder, COMPOSE_PROFILES=",".join(GPU_PROFILES), **values)
    return declared.services(root), yaml.safe_load((root / generated.SCRAPES).read_text())["scrape_configs"]


with tempfile.TemporaryDirectory() as _folder:
    SERVICES, JOBS = stack(Path(_folder), ACCELERATOR="cuda")
CONFIG = load("docker/prometheus/prometheus.yml")
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
    return set(SERVICES[name].get("networks", ()))


def test_configuration_names_the_generated_file() -> None:
    assert CONFIG["scrape_config_files"] == [generated.SCRAPES.name]
    assert CHECKOUT / generated.SCRAPES.parent == CHECKOUT / "docker/prometheus"


def test_every_service_with_metrics_is_scraped() -> None:
    assert {job["job_name"] for job in JOBS} == {
        *("prometheus", "ray", "gateway", "mlflow", "minio", "minio-buckets", "postgres", "alertmanager", "cuda")
    }
    (bucket,) = [job for job in JOBS if job["job_name"] == "minio-buckets"]
    assert bucket["static_configs"] == [{"targets": ["minio:9000"]}]
    assert bucket["metrics_path"] == "/minio/v2/metrics/bucket"
    assert "port" not in bucket


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job["job_name"])
def test_prometheus_reaches_each_target(job: dict[str, Any]) -> None:
    targets = [target for config in job.get("static_configs", []) for target in config["targets"]]
    targets += [name for config in job.get("dns_sd_configs", []) for name in config["names"]]
    for name in {target.partition(":")[0] for target in targets} - {"localhost"}:
        assert name in SERVICES, f"{name} is not a service of compose/"
        assert networks(name) & networks("prometheus"), f"Prometheus shares no network with {name}"


@pytest.mark.parametrize(
    ("only", "left"), [("", {"gateway", "mlflow", "ray"}), ("ray", {"gateway", "ray"}), ("tracking", {"mlflow"})]
)
def test_half_of_stack_has_no_target_in_other_half(tmp_path: Path, only: str, left: set[str]) -> None:
    services, _ = stack(tmp_path)
    found = generated.scrape_configs(services, StackSettings.load(tmp_path / ".env"), only)
    assert {job["job_name"] for job in found} & {"gateway", "mlflow", "ray"} == left


def test_stack_with_another_store_has_no_target_there(tmp_path: Path) -> None:
    services, jobs = stack(tmp_path, S3_ENDPOINT_URL="https://s3.example.org")
    assert not [job for job in jobs if "minio" in job["job_name"]]
    assert "store_prometheus_token" not in services["prometheus"]["secrets"]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job["job_name"])
def test_prometheus_has_secrets_of_each_target(job: dict[str, Any]) -> None:
    parts = [job, *job.get("http_sd_configs", [])]
    files = {part.get("authorization", {}).get("credentials_file") for part in parts}
    files |= {part.get("basic_auth", {}).get("password_file") for part in parts}
    mounted = SERVICES["prometheus"]["secrets"]
    assert {Path(file).name for file in files - {None}} <= set(mounted)
    assert len(mounted) == len(set(mounted))


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
