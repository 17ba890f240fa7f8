"""The TLS entrance: which files name its address, the addresses that it prints, and what clients need."""

import errno
import hashlib
import os
import re
import socket
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from compose_files import checkout, joined_host

from mlplatform.errors import HostError
from mlplatform_stack import cli, compose, declared, entrance, generated, images, preflight, sizing
from mlplatform_stack import env as stack_env
from mlplatform_stack.host import Host
from mlplatform_stack.services import pages, start_variables
from mlplatform_stack.settings import StackSettings

CHECKOUT = Path(__file__).parents[3]
Program = Callable[[str, str], Path]


def settings(tmp_path: Path, *lines: str) -> StackSettings:
    (tmp_path / ".env").write_text("\n".join(["MLPLATFORM_VERSION=1", *lines]))
    return StackSettings.load(tmp_path / ".env")


def proxied(tmp_path: Path, *lines: str) -> StackSettings:
    return settings(tmp_path, "COMPOSE_PROFILES=ray,proxy", "BIND_ADDRESS=127.0.0.2", *lines)


def test_only_entrance_reads_bind_address() -> None:
    shipped = [path for path in (CHECKOUT / "compose").rglob("*.yaml") if ".generated." not in path.name]
    files = [*shipped, CHECKOUT / "Makefile", *(CHECKOUT / "docker").rglob("*.y*ml")]
    assert {file.name for file in files if "BIND_ADDRESS" in file.read_text()} == {"proxy.yaml"}


def test_services_publish_on_literal_loopback(tmp_path: Path) -> None:
    for name, service in {**declared.services(checkout(tmp_path)), **joined_host()}.items():
        others = [port for port in service.get("ports", []) if not port.startswith("127.0.0.1:")]
        # The hub speaks WireGuard, which answers to nobody whose key it does not have.
        assert not others or name in ("hub", "proxy"), (name, others)


@pytest.mark.parametrize("endpoint", ["", "https://s3.example.org"])
def test_entrance_publishes_every_page_on_its_usual_port(tmp_path: Path, endpoint: str) -> None:
    """Those of the store only where it is the stack's own."""
    root = checkout(tmp_path, S3_ENDPOINT_URL=endpoint)
    proxy = declared.services(root)["proxy"]
    assert proxy["networks"] == ["edge"], "jobs would share a network with it"
    published = "${BIND_ADDRESS}"
    shown = pages(root)
    assert ("S3_PORT" in {page.setting for page in shown}) == (not endpoint)
    assert set(proxy["ports"]) == {
        f"{published}:${{HTTPS_PORT}}:8443",
        *(f"{published}:{page.written}:{page.inside}" for page in shown),
    }
    sites = re.findall(r"https://\{\$(\w+)\}:(\d+)", (root / generated.SITES).read_text())
    for host in ("BIND_ADDRESS", "DOMAIN"):
        assert {int(port) for name, port in sites if name == host} == {page.inside for page in shown}


def test_each_kind_of_site_is_a_snippet_of_the_caddyfile(tmp_path: Path) -> None:
    caddy = (CHECKOUT / "docker/proxy/Caddyfile").read_text()
    assert caddy.endswith(f"\nimport {generated.SITES.name}\n")
    text = (checkout(tmp_path) / generated.SITES).read_text()
    used = set(re.findall(r"^\timport ([\w-]+) \S+:\d+$", text, re.M))
    assert used == {"page", "objects", "ray", "mlflow"}
    assert used <= set(re.findall(r"^\(([\w-]+)\) \{$", caddy, re.M))
    assert "\timport mlflow mlflow:8000\n" in text
    below = "https://*.lab.{$DOMAIN}:8265, https://*.lab.{$DOMAIN} {\n\ttls internal\n\timport ray gateway:8265\n"
    assert below in text
    assert "https://notebook.{$DOMAIN}:8888, https://notebook.{$DOMAIN}, https://jupyter.{$DOMAIN} {" in text


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], ["https://127.0.0.2"] * 3),
        (
            ["DOMAIN=ml.example.org"],
            ["https://ml.example.org", "https://mlflow.ml.example.org", "https://prometheus.ml.example.org"],
        ),
    ],
)
def test_printed_addresses_are_those_of_entrance(tmp_path: Path, lines: list[str], expected: list[str]) -> None:
    variables = entrance.variables(proxied(tmp_path, *lines))
    assert variables == dict(zip(("PAGES_ORIGIN", "MLFLOW_ORIGIN", "PROMETHEUS_ORIGIN"), expected, strict=True))
    assert entrance.origin(proxied(tmp_path, *lines), "mlflow") == expected[1]


def test_each_page_has_name_of_its_own_for_its_cookies(tmp_path: Path) -> None:
    root = checkout(tmp_path)
    shown = pages(root)
    assert [page.setting for page in shown if not page.name] == ["S3_PORT"], "only programs use it"
    assert {page.name for page in shown} >= {"notebook", "ray", "mlflow", "grafana", "prometheus", "minio"}
    assert entrance.origin(settings(tmp_path), "grafana") == "http://grafana.localhost"
    sites = (root / generated.SITES).read_text()
    for page in shown:
        if page.name:
            assert f"https://{page.name}.{{$DOMAIN}}:{page.inside}" in sites, page.name
    tracking = (CHECKOUT / "compose/tracking.yaml").read_text()
    assert "mlflow.localhost:*" in tracking


@pytest.mark.parametrize(
    "variables", [{}, {"GRAFANA_PORT": "13000"}, {"PAGES_ORIGIN": "https://ml.example.org", "GRAFANA_PORT": "13000"}]
)
def test_panels_in_ray_dashboard_use_published_port(variables: dict[str, str]) -> None:
    def resolved(text: str) -> str:
        values = {**StackSettings.defaults(), **variables}
        return re.sub(r"\$\{(\w+)(?::-([^}]*))?\}", lambda found: values.get(found[1], found[2]), text)

    services = {
        name: yaml.safe_load((CHECKOUT / f"compose/{file}.yaml").read_text())["services"][name]
        for name, file in {"ray-head": "ray", "grafana": "monitoring"}.items()
    }
    _, port, _ = resolved(services["grafana"]["ports"][0]).split(":")
    origin = variables.get("PAGES_ORIGIN", "http://ray.localhost")  # the site of Ray's page, so that cookies are sent
    assert resolved(services["ray-head"]["environment"]["RAY_GRAFANA_IFRAME_HOST"]) == f"{origin}:{port}"
    assert port == variables.get("GRAFANA_PORT", "3000")


def test_without_entrance_addresses_are_on_loopback(tmp_path: Path) -> None:
    assert entrance.origin(settings(tmp_path)) == "http://127.0.0.1"
    assert entrance.variables(settings(tmp_path)) == {}
    assert entrance.trust(tmp_path, settings(tmp_path)) == {}


@pytest.mark.parametrize("half", ["tracking", "ray"])
def test_each_half_of_stack_has_entrance(tmp_path: Path, half: str) -> None:
    assert "proxy" in start_variables(proxied(tmp_path), half)["COMPOSE_PROFILES"].split(",")


def test_clients_get_bundle_with_authority(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"no .*proxy-ca-bundle.pem: run `make status`"):
        entrance.trust(tmp_path, proxied(tmp_path))
    (tmp_path / entrance.BUNDLE).touch()
    assert set(entrance.trust(tmp_path, proxied(tmp_path))) == {"AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"}
    public = proxied(tmp_path, "DOMAIN=ml.example.org", "ACME_EMAIL=ops@example.org")
    assert entrance.trust(tmp_path, public) == {}


def test_client_addresses_use_given_origin(root: Path) -> None:
    stack_env.write_env(root, Host(memory=24 * sizing.GIB, cpus=8))
    client = stack_env.client_settings(root, "https://ml.example.org")
    assert client.ray_address == "https://ml.example.org:8265"
    assert client.tracking_uri == "https://ml.example.org:8000"
    assert client.s3_endpoint == "https://ml.example.org:9000"


def test_address_of_another_host_is_reported(tmp_path: Path) -> None:
    elsewhere = settings(tmp_path, "COMPOSE_PROFILES=proxy", "BIND_ADDRESS=192.0.2.1")
    (problem,) = preflight._entrance_problems(tmp_path, elsewhere)
    assert f"BIND_ADDRESS=192.0.2.1 cannot be used ({os.strerror(errno.EADDRNOTAVAIL)})" in problem


# A stack whose gateway and entrance run.
DOCKER = """\
case "$*" in
  *" ps --services") echo gateway; echo proxy ;;
  *" exec --no-TTY proxy cat "*) cat "$(dirname "$0")/../certificate.pem" ;;
esac
"""


def test_start_prints_notes_fingerprint_and_trust_command(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    proxied(checkout(tmp_path))
    program("docker", DOCKER)
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", tmp_path / "key.pem")
    certificate = tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", *key, "-out", certificate, "-subj", "/CN=test"]
    subprocess.run(command, check=True, capture_output=True)
    monkeypatch.setattr(preflight, "check_host", lambda root, only: ["a rule is missing"])
    monkeypatch.setattr(compose, "up", lambda root, only: None)
    monkeypatch.setattr(images, "remove_former", lambda root: 0)
    cli.up(tmp_path)
    printed = capsys.readouterr()
    assert printed.err == "Note: a rule is missing\n"
    fingerprint = hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.read_text())).hexdigest()
    assert f"SHA-256 fingerprint {fingerprint}." in printed.out
    assert f"sudo cp {tmp_path / entrance.CERTIFICATE} " in printed.out


def test_used_port_of_entrance_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.2", 0)) as server:
        port = server.getsockname()[1]
        found = proxied(checkout(tmp_path), f"MLFLOW_PORT={port}")
        problems = list(preflight._entrance_problems(tmp_path, found))
    assert any(f"Port {port} of 127.0.0.2" in problem and "MLFLOW_PORT" in problem for problem in problems)
