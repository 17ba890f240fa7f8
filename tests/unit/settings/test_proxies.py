"""Requests to the platform, whatever proxies a person's shell, a job or a container names."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from mlplatform.client.jobs import Jobs
from mlplatform.client.mlflow_rest import Account, MlflowRest
from mlplatform.errors import PlatformError, UnreachableError
from mlplatform.settings import proxies
from mlplatform.settings.job import Settings
from mlplatform_stack.proxies import for_containers

CHECKOUT = Path(__file__).parents[3]
VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def no_proxies(clean_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.delenv(variable.lower(), raising=False)


@pytest.fixture
def proxy(serve: Callable[..., str]) -> str:
    """A proxy that answers every request itself, as one does for a host that it does not know."""
    return serve(lambda method, path: (503, "unknown host"))


def test_hosts_without_proxy_keep_those_of_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", ".corp.example, localhost")
    monkeypatch.setenv("no_proxy", "10.0.0.0/8")
    expected = "mlflow,.corp.example,localhost,10.0.0.0/8,127.0.0.1,::1"
    assert proxies.bypass("mlflow", None) == {"NO_PROXY": expected, "no_proxy": expected}
    assert Settings.load().environment()["no_proxy"] == ".corp.example,localhost,10.0.0.0/8,127.0.0.1,::1"


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_services_of_this_machine_are_reached_past_proxy(
    serve: Callable[..., str], proxy: str, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, proxy)
    with MlflowRest(serve(lambda method, path: (200, '{"experiments": []}')), Account()) as mlflow:
        assert mlflow.call("GET", "experiments/search", {}) == {"experiments": []}
    gateway = serve(lambda method, path: (200, "[]"))
    with Jobs(Settings.load(ray_address=gateway)) as jobs:
        assert jobs.list() == []


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_proxy_in_the_way_of_another_host_is_named(proxy: str, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, proxy)
    named = rf"{variable.upper()} sends requests to a proxy; .* add tracking\.example\.org to NO_PROXY\."
    address = "http://tracking.example.org:8000"
    with MlflowRest(address, Account()) as mlflow, pytest.raises(UnreachableError, match=named):
        mlflow.call("GET", "experiments/search", {})
    monkeypatch.setenv(variable, "http://127.0.0.1:9")
    with Jobs(Settings.load(ray_address=address)) as jobs, pytest.raises(PlatformError, match=named):
        jobs.list()
    monkeypatch.setenv("NO_PROXY", "example.org")
    assert proxies.hint(address) == ""


def compose_files() -> list[Path]:
    return [path for path in (CHECKOUT / "compose").rglob("*.yaml") if "generated" not in path.name]


def environment_of_all_services() -> dict[str, str]:
    base = yaml.safe_load((CHECKOUT / "compose/base.yaml").read_text())
    return base["services"]["service"]["environment"]


def test_services_reach_each_other_without_proxy() -> None:
    documents = [yaml.safe_load(path.read_text()) for path in compose_files()]
    services = {name for document in documents for name in document.get("services") or {}}
    texts = [path.read_text() for folder in ("compose", "docker") for path in (CHECKOUT / folder).rglob("*.y*ml")]
    named = {host for text in texts for host in re.findall(r"(?:https?://|[\"'\[ ])([a-z][a-z0-9-]+):\d{2,5}\b", text)}
    reached = named & services
    assert {"mlflow", "minio", "gateway", "prometheus", "ray-head", "alertmanager"} <= reached
    for variable in proxies.BYPASS:
        assert reached <= set(environment_of_all_services()[variable].split(",")), variable


def test_health_checks_by_wget_never_use_proxy() -> None:
    """BusyBox's wget ignores NO_PROXY."""
    checked = 0
    for path in compose_files():
        services: dict[str, Any] = yaml.safe_load(path.read_text()).get("services") or {}
        for name, service in services.items():
            if "wget" in str((service.get("healthcheck") or {}).get("test")):
                assert (service.get("environment") or {}).get("http_proxy") == "", f"{path.name}: {name}"
                checked += 1
    assert checked


def test_every_build_takes_proxies() -> None:
    builds = [
        service["build"]
        for path in compose_files()
        for service in (yaml.safe_load(path.read_text()).get("services") or {}).values()
        if "build" in service
    ]
    assert builds
    for build in builds:
        missing = {"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"} - {*build["args"]}
        assert not missing, build["dockerfile"]


def test_proxies_of_containers_are_those_of_shell_or_docker_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert for_containers({}) == {}
    of_client = {"httpProxy": "http://client:3128", "noProxy": "intranet"}
    (tmp_path / "config.json").write_text(json.dumps({"auths": {}, "proxies": {"default": of_client}}))
    expected = {"http_proxy": "http://client:3128", "no_proxy": "intranet"}
    assert for_containers({}) == {**expected, **{name.upper(): value for name, value in expected.items()}}
    assert for_containers({"HTTPS_PROXY": "http://file:1"}) == {"HTTPS_PROXY": "http://file:1"}
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:3128")
    assert for_containers({"HTTPS_PROXY": "http://file:1"}) == {"HTTPS_PROXY": ""}, "no container reaches it"
