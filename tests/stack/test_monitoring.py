"""Prometheus scrapes every part of the stack; rules, Grafana's provisioning and dashboards match it."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import yaml
from host import CHECKOUT, Stack, Trained, run, wait_for

from mlplatform.client.jobs import Jobs
from mlplatform_stack import declared
from mlplatform_warm import notes

OF_GPUS = re.compile(r"\bgpu:|ray_node_gpus_|ray_node_gram_|ray_component_gpu_")
"""Metrics that no part of this stack exports; promtool tests the rules that make them."""

OF_STORE = "minio_"


def metrics_of(expression: str) -> list[str]:
    """Metrics that a rule reads, except those of GPUs, which this stack lacks."""
    labels = r"\{[^}]*\}|\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)"
    return re.findall(r"\b(?<!:)[a-z]+_\w+\b(?!\s*\()", re.sub(labels, "", expression))


def test_every_prometheus_target_is_up(stack: Stack) -> None:
    found = declared.services(stack.root, generated=False).items()
    # Those of the accelerator are in another file.
    jobs = {entry.get("job", name) for name, service in found for entry in declared.facts(service).get("metrics", ())}
    assert {"gateway", "ray", "postgres"} <= jobs

    def all_up() -> bool:
        targets = stack.prometheus_targets()
        assert {target["labels"]["job"] for target in targets} == jobs
        down = [(target["scrapeUrl"], target["lastError"]) for target in targets if target["health"] != "up"]
        assert not down, down
        # At least one per node.
        return sum(target["labels"]["job"] == "ray" for target in targets) >= 3

    wait_for(all_up, "every target to be up")


def test_workers_query_no_metrics_through_gateway(stack: Stack) -> None:
    path = "http://gateway:8265/platform/prometheus/api/v1/query?query=up"
    status = ["curl", "--silent", "--output", "/dev/null", "--write-out", "%{http_code}", path]
    assert stack.execute("ray-worker-0", *status).stdout == "403"


def test_jobs_of_gateway_are_in_prometheus(stack: Stack, trained: Trained) -> None:
    def succeeded() -> float:
        samples = stack.prometheus('sum(mlplatform_jobs{state="SUCCEEDED"})')
        return float(samples[0]["value"][1]) if samples else 0

    wait_for(lambda: succeeded() >= 1, "the main job among the succeeded ones")
    for metric in (
        *("mlplatform_ended_attempts", "mlplatform_waiting_resources", "mlplatform_log_bytes_total"),
        *("mlplatform_reserved_gpu_seconds_total", "mlplatform_lost_cpu_seconds_total"),
    ):
        assert stack.prometheus(metric), metric


def test_starts_of_programs_are_counted(stack: Stack) -> None:
    def counts() -> dict[str, float]:
        """Programs by whether they started warm, as Prometheus has them; empty before it has both series."""
        samples = stack.prometheus("mlplatform_starts_total")
        found = {sample["metric"]["warm"]: float(sample["value"][1]) for sample in samples}
        return found if len(found) == 2 else {}

    before = wait_for(counts, "the metric to be scraped")
    job_id = f"counted-{secrets.token_hex(4)}"
    variables = {"MLPLATFORM_WARM_START": "0"}
    body = {"entrypoint": "python -c 'print(1)'", "submission_id": job_id, "runtime_env": {"env_vars": variables}}
    with stack.ray as gateway:
        gateway.post("/api/jobs/", json=body).raise_for_status()
        wait_for(lambda: gateway.get(f"/api/jobs/{job_id}").json()["status"] == "SUCCEEDED", "the end of the job")
        log = gateway.get(f"/api/jobs/{job_id}/logs").json()["logs"]
        metrics = gateway.get("/platform/metrics")
        gateway.delete(f"/api/jobs/{job_id}").raise_for_status()
    assert f"{notes.COLD}warm start is off" in log.splitlines()
    assert metrics.status_code == 403, "the token of Ray's clients reads the metrics"
    wait_for(lambda: counts()["false"] > before["false"], "Prometheus to see the cold start")


def test_rules_pass_their_promtool_tests(checkout: Stack) -> None:
    # Not in the running container, which has no place for the tests: its file system is read-only.
    image = json.loads(checkout.compose("config", "--format", "json").stdout)["services"]["prometheus"]["image"]
    folders = ("docker/prometheus/rules", "tests/rules")
    mounts = [f"--volume={checkout.root / folder}:/checkout/{folder}:ro" for folder in folders]
    promtool = ("docker", "run", "--rm", "--network=none", *mounts, "--entrypoint=promtool", image, "test", "rules")
    tests = [f"/checkout/tests/rules/{file.name}" for file in sorted((CHECKOUT / "tests/rules").iterdir())]
    assert run(*promtool, *tests).stdout.count("SUCCESS") == len(tests)


def test_alert_rules_load_and_their_metrics_exist(stack: Stack) -> None:
    rules = stack.execute("prometheus", "promtool", "check", "config", "/etc/prometheus/prometheus.yml").stdout
    assert "SUCCESS" in rules
    groups = yaml.safe_load((stack.root / "docker/prometheus/rules/alerts.yml").read_text())["groups"]
    for alert in [rule for group in groups for rule in group["rules"]]:
        for metric in metrics_of(alert["expr"]):
            if metric.startswith(OF_STORE) and not stack.own_store:
                continue
            wait_for(lambda metric=metric: stack.prometheus(metric), f"{metric}, which {alert['alert']} watches")


@contextmanager
def training(jobs: Jobs) -> Iterator[str]:
    """Run the main job for longer than any test needs it."""
    job_id = jobs.submit(["python", "digits.py", "--epochs=5000"], CHECKOUT / "jobs", name="watched")
    try:
        yield job_id
    finally:
        jobs.stop(job_id)
        jobs.wait(job_id, timeout_s=60)
        jobs.delete(job_id)


def dashboard_queries(stack: Stack, **variables: str) -> set[str]:
    """Every query of our dashboards, with the variables substituted as Grafana does."""
    values = {"__rate_interval": "1m", **variables}
    files = sorted((stack.root / "docker/grafana/dashboards").iterdir())
    panels = [panel for file in files for panel in json.loads(file.read_text())["panels"]]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    return {re.sub(r"\$([a-z_]+)", lambda name: values[name[1]], query) for query in queries}


def test_every_query_of_dashboards_has_data_during_training(stack: Stack, jobs: Jobs) -> None:
    with training(jobs) as job_id:
        running = f'mlplatform_running_attempts{{job_id="{job_id}"}}'
        (attempt,) = wait_for(lambda: stack.prometheus(running), "the job among the running ones")
        unanswered = dashboard_queries(stack, job_id=job_id, ray_job_id=attempt["metric"]["ray_job_id"])
        missing = {query for query in unanswered if OF_GPUS.search(query)}
        missing |= {query for query in unanswered if OF_STORE in query and not stack.own_store}
        assert len(unanswered) > 70
        for query in missing:
            stack.prometheus(query)  # raises if Prometheus rejects the query
        unanswered -= missing

        def all_answered() -> bool:
            unanswered.difference_update([query for query in unanswered if stack.prometheus(query)])
            assert not unanswered, sorted(unanswered)
            return True

        wait_for(all_answered, "data for every query")

        def system_metrics() -> list[str]:
            (found,) = stack.runs_of(job_id)
            return [entry["key"] for entry in found["data"]["metrics"] if entry["key"].startswith("system/")]

        # The first ones are sent after 10 s.
        wait_for(system_metrics, "system metrics in the job's run")


def test_grafana_provisioning_has_data_source_and_ray_dashboards(stack: Stack) -> None:
    # No package contains Grafana, so this checks only its files and the queries in them.
    provisioning = stack.root / "docker/grafana/provisioning"
    source = yaml.safe_load((provisioning / "datasources/prometheus.yaml").read_text())["datasources"][0]
    assert source["url"] == "http://prometheus:9090"
    folder = yaml.safe_load((provisioning / "dashboards/ray.yaml").read_text())["providers"][0]["options"]["path"]
    config = json.loads(stack.compose("config", "--format", "json").stdout)
    mounts = {mount["target"]: mount["source"] for mount in config["services"]["grafana"]["volumes"]}
    assert mounts[folder] == "grafana-dashboards"

    stack.compose("run", "--rm", "--no-deps", "grafana-dashboards")
    volume = config["volumes"]["grafana-dashboards"]["name"]
    image = f"mlplatform-ray:{stack.settings.mlplatform_version}"
    show = ("docker", "run", "--rm", "--network=none", f"--volume={volume}:/d", image, "cat", "/d/ray-core.json")
    dashboard = json.loads(run(*show).stdout)
    assert dashboard["title"]
    assert dashboard["uid"]
    panels = [panel for row in dashboard["panels"] for panel in (row, *row.get("panels", []))]
    expressions = [target["expr"] for panel in panels for target in panel.get("targets", []) if "expr" in target]
    assert len(expressions) > 20

    # Substitute the variables as Grafana does.
    queries = [re.sub(r"\$\{?(?:__rate_interval|__interval)\}?", "1m", expression) for expression in expressions]
    queries = [re.sub(r"=~?\"\$\w+\"", '=~".*"', query) for query in queries]
    queries = [re.sub(r"\$\{?\w+(?::\w+)?\}?", ".*", query) for query in queries]

    def without_data() -> list[str]:
        return [query for query in queries if not stack.prometheus(query)]  # raises if Prometheus rejects one

    def explained() -> bool:
        named = stack.prometheus('count by (__name__) ({__name__=~"ray_.+"})')
        exported = {entry["metric"]["__name__"] for entry in named}
        missing = [query for query in without_data() if set(re.findall(r"\bray_\w+", query)) <= exported]
        assert not missing, missing
        return True

    wait_for(explained, "data for each query of metrics that Ray exports", 60)
    # Others are of GPUs, spilled objects and the like, which this stack does not have.
    assert len(queries) - len(without_data()) >= 10, without_data()
