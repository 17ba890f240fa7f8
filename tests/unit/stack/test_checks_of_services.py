"""Checks of `mlplatform doctor` on what services serve: certificates, accounts, GPUs."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mlplatform.stack import entrance, secrets_folder
from mlplatform.stack.checks import accounts, certificates, gpus
from mlplatform.stack.checks.finding import Place

CHECKOUT = Path(__file__).parents[3]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A checkout with settings and secrets, and an empty folder of commands and one of devices."""
    text = (CHECKOUT / ".env.example").read_text()
    (tmp_path / ".env").write_text(text.replace("MLPLATFORM_VERSION=", "MLPLATFORM_VERSION=0"))
    secrets_folder.write_missing(tmp_path / "secrets")
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return Place(tmp_path, dev=tmp_path / "dev")


def command(place: Place, name: str, script: str) -> None:
    """Add a command that takes precedence over the host's."""
    file = place.root / "bin" / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


# --- Certificates ---


def certificate(folder: Path, name: str = "certificate") -> Path:
    """Write a certificate of 127.0.0.2 that is its own authority, with its key in the same file."""
    key, cert, both = (folder / f"{name}.{part}" for part in ("key", "crt", "pem"))
    names = ["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.2"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "90"]
    subprocess.run(
        ["openssl", "req", "-x509", *kind, *names, "-keyout", key, "-out", cert], check=True, capture_output=True
    )
    both.write_text(key.read_text() + cert.read_text())
    return both


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[int]:
    """Port of a server that answers handshakes with the certificate in `certificate.pem`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate(tmp_path))
    with socket.create_server(("127.0.0.2", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                try:
                    context.wrap_socket(connection, server_side=True).close()
                except OSError:
                    connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def with_entrance(place: Place, port: int, trusted: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Settings with the entrance at a port of loopback, and the copies of its authority's certificate."""
    for name, value in {"COMPOSE_PROFILES": "proxy", "BIND_ADDRESS": "127.0.0.2", "RAY_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)
    for name in (entrance.CERTIFICATE, entrance.BUNDLE):
        shutil.copy(trusted, place.root / name)
    return place


def test_accepted_certificate_has_no_finding(place: Place, tls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    proxied = with_entrance(place, tls, place.root / "certificate.crt", monkeypatch)
    assert list(certificates.of_entrance(proxied)) == []


def test_certificate_of_other_authority_is_found(place: Place, tls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate(place.root, "former")
    proxied = with_entrance(place, tls, place.root / "former.crt", monkeypatch)
    (found,) = certificates.of_entrance(proxied)
    assert f"127.0.0.2:{tls} is refused" in found.problem
    assert found.fix == "make status"
    assert found.repair


def test_missing_copy_of_authority_is_found(place: Place, tls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    proxied = with_entrance(place, tls, place.root / "certificate.crt", monkeypatch)
    (place.root / entrance.BUNDLE).unlink()
    assert [bool(found.repair) for found in certificates.of_entrance(proxied)] == [True]


def test_stopped_entrance_has_no_finding(place: Place, closed_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate(place.root)
    proxied = with_entrance(place, closed_port, place.root / "certificate.crt", monkeypatch)
    assert list(certificates.of_entrance(proxied)) == []
    assert list(certificates.of_entrance(Place(place.root))) == []


# --- Accounts ---


@pytest.mark.parametrize("status", [200, 401, 404])
def test_rejected_secrets_are_found_by_name(
    place: Place, serve: Callable[..., str], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = serve(lambda method, path: (status, "")).rpartition(":")[2]
    for name in ("RAY_PORT", "MLFLOW_PORT", "NOTEBOOK_PORT", "PROMETHEUS_PORT", "GRAFANA_PORT"):
        monkeypatch.setenv(name, port)
    found = " ".join(finding.problem for finding in accounts.rejected(place))
    names = (
        *("ray_token", "log_shipper_token", "mlflow_person", "notebook_token"),
        *("prometheus_password", "grafana_password"),
    )
    assert [f"secrets/{name} ({status})" in found for name in names] == [status == 401] * len(names)
    assert ("The gateway rejects secrets/prometheus_password (401)" in found) == (status == 401)


def test_secrets_of_stopped_services_are_not_tried(
    place: Place, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RAY_PORT", "MLFLOW_PORT", "NOTEBOOK_PORT", "PROMETHEUS_PORT", "GRAFANA_PORT"):
        monkeypatch.setenv(name, str(closed_port))
    assert list(accounts.rejected(place)) == []


# --- GPUs ---


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo 'GPU 0: H100'", None),
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", "version mismatch"),
        ("true", "lists no GPU"),
    ],
)
def test_driver_of_nvidia_that_fails_is_found(
    place: Place, script: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATOR", "cuda")
    command(place, "nvidia-smi", script)
    problems = [finding.problem for finding in gpus.drivers(place)]
    assert len(problems) == bool(expected)
    assert all(expected in problem for problem in problems if expected)


def test_missing_driver_of_nvidia_is_found(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(gpus.drivers(place)) == []
    monkeypatch.setenv("ACCELERATOR", "cuda")
    monkeypatch.setenv("PATH", str(place.root / "bin"))
    assert ["no driver of NVIDIA" in finding.problem for finding in gpus.drivers(place)] == [True]


NVML = "Failed to initialize NVML: Unknown Error"


@pytest.mark.parametrize(
    ("accelerator", "notebook", "expected"),
    [("cpu", "3", []), ("cuda", "", ["ml-ray-worker-1"]), ("rocm", "3", ["ml-notebook-ann", "ml-ray-worker-1"])],
)
def test_container_that_lost_its_gpus_is_found(
    place: Place, accelerator: str, notebook: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATOR", accelerator)
    monkeypatch.setenv("NOTEBOOK_GPUS", notebook)
    services = ("gateway", "notebook-ann", "ray-head", "ray-worker-0", "ray-worker-1")
    script = f"""\
case "$*" in
  *" ps --format "*) printf '%s\n' {" ".join(f"'{name} ml-{name}'" for name in services)} ;;
  "exec ml-ray-worker-0 nvidia-smi "*) echo 'GPU 0: H100' ;;
  "exec ml-ray-worker-0 sh "*) ;;
  exec*) echo '{NVML}'; exit 255 ;;
esac"""
    command(place, "docker", script)
    found = sorted(gpus.lost(place), key=lambda finding: finding.fix)
    assert [finding.fix for finding in found] == [f"docker restart {name}" for name in expected]
    assert all(NVML in finding.problem and finding.blocks for finding in found)


def test_devices_of_other_group_are_found(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATOR", "rocm")
    (place.dev / "dri").mkdir(parents=True)
    (place.dev / "kfd").touch(0o660)
    assert ["renderD" in finding.problem for finding in gpus.drivers(place)] == [True, False]
    node = place.dev / "dri" / "renderD128"
    node.touch(0o660)
    gid = node.stat().st_gid
    fixes = [finding.fix for finding in gpus.drivers(place)]
    assert len(fixes) == 2
    assert all(f"RENDER_GID={gid}/" in fix for fix in fixes)
    monkeypatch.setenv("RENDER_GID", str(gid))
    assert list(gpus.drivers(place)) == []
