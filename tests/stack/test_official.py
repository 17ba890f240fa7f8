"""Images of others: services rely on nothing that the facts do not grant, and stand-ins are as the facts describe."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import compare
import contract
import facts
import httpx
import pytest
from compose_files import checkout
from host import CHECKOUT, Stack, run, wait_for

IMAGES, _ = facts.load()
GPU_EXPORTERS = {"dcgm-exporter": ("cuda", 9400), "amd-exporter": ("rocm", 5000)}


def configured(folder: Path, **variables: str) -> dict[str, Any]:
    """The services as Compose resolves them, with other settings than the checkout's own."""
    root = checkout(folder, **variables)
    defaults = ("--env-file", str(CHECKOUT / ".env.example"), "--env-file", ".env")
    command = ["docker", "compose", *defaults, "--file", "compose/compose.yaml", "--profile", "*"]
    return dict(json.loads(run(*command, "config", "--format", "json", cwd=root).stdout))


@pytest.mark.parametrize("accelerator", ["cpu", "cuda", "rocm"])
def test_services_rely_on_nothing_but_facts(accelerator: str, tmp_path: Path) -> None:
    config = configured(tmp_path, ACCELERATOR=accelerator)
    owned = {mount["source"] for mount in config["services"]["ownership"]["volumes"]}
    services = contract.official(config)
    assert {"postgres", "prometheus", "alertmanager", "postgres-exporter", "grafana"} <= set(services)
    assert {
        fault: name for name, service in services.items() for fault in contract.faults(service, IMAGES[name], owned)
    } == {}


@pytest.mark.parametrize("name", IMAGES)
def test_image_is_as_the_facts_describe(name: str) -> None:
    """Of the official image where it was pulled, else of its stand-in."""
    image = f"{IMAGES[name]['image']}:{IMAGES[name]['tag']}"
    run(str(CHECKOUT / "tests/stack/bases.sh"), image)
    assert list(compare.differences(image, IMAGES[name])) == []


def test_another_image_differs_in_each_kind_of_fact() -> None:
    found = "\n".join(compare.differences("debian:trixie-slim", IMAGES["prometheus"]))
    for words in ("user: ", "entry point: ", "volumes: ", "no promtool", "has bash", "/prometheus is missing"):
        assert words in found
    assert "has no flag --storage.tsdb.path" in found


@pytest.fixture(params=GPU_EXPORTERS)
def exporter(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[dict[str, Any], str, int]]:
    """Definition, container and port of an exporter that runs with the rights of its service, without its devices."""
    name, (accelerator, port) = request.param, GPU_EXPORTERS[request.param]
    service = configured(tmp_path, ACCELERATOR=accelerator, RENDER_GID="109")["services"][name]
    run(str(CHECKOUT / "tests/stack/bases.sh"), service["image"])
    rights = [f"--cap-add={added}" for added in service.get("cap_add", [])]
    rights += [f"--security-opt={option}" for option in service["security_opt"]]
    # A file in place of the device, which the stand-in for AMD's agent reads.
    mounts = ["--volume=/etc/hostname:/dev/kfd:ro"] if accelerator == "rocm" else []
    container = f"test-{name}"
    run("docker", "rm", "--force", container, check=False)
    common = ("docker", "run", "--detach", "--init", f"--name={container}", "--hostname=gpu-host-7", "--cap-drop=ALL")
    run(*common, *rights, *mounts, service["image"])
    yield service, container, port
    run("docker", "rm", "--force", container)


def test_gpu_exporter_is_healthy_and_names_its_host(exporter: tuple[dict[str, Any], str, int]) -> None:
    service, container, port = exporter
    kind, command = service["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    wait_for(lambda: not run("docker", "exec", container, "sh", "-c", command, check=False).returncode, "health", 20)
    template = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    address = run("docker", "inspect", "--format", template, container).stdout.strip()
    text = httpx.get(f"http://{address}:{port}/metrics").text
    assert text.count('ostname="gpu-host-7"') >= 6
    facts_of_image = next(entry for entry in IMAGES.values() if service["image"].startswith(entry["image"]))
    assert all(metric in text for metric in facts_of_image["exports"])


def test_grafana_has_provisioned_files_and_no_password_in_a_variable(stack: Stack) -> None:
    password, address = stack.secret("grafana_password"), f"http://127.0.0.1:{stack.settings.grafana_port}"
    with httpx.Client(base_url=address, auth=("admin", password), timeout=20) as grafana:
        assert grafana.get("/api/user").json()["login"] == "admin"
        found = {
            entry["uid"]: entry.get("folderTitle") for entry in grafana.get("/api/search").json() if "uid" in entry
        }
        assert found["mlplatform-overview"] == "Platform"
        assert "Ray" in found.values()
        (source,) = grafana.get("/api/datasources").json()
        query = {"query": "up", "time": str(time.time())}
        answer = grafana.get(f"/api/datasources/proxy/uid/{source['uid']}/api/v1/query", params=query).json()
    assert answer["data"]["result"], "Grafana has no numbers of Prometheus"
    environments = "cat /proc/[0-9]*/environ | tr '\\0' '\\n'"
    variables = stack.execute("grafana", "sh", "-c", environments).stdout
    assert "GF_SECURITY_ADMIN_PASSWORD=$__file{/run/secrets/grafana_password}" in variables
    assert password not in variables
