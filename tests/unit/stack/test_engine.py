"""Engines on which the stack cannot start: kind, version, and names that containers of others have."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mlplatform.errors import HostError
from mlplatform.stack import compose, doctor, engine
from mlplatform.stack import services as stack_services

CHECKOUT = Path(__file__).parents[3]

DOCKER = """\
echo "$COMPOSE_PROFILES: $*" >>"$0.calls"
case "$*" in
  version) printf '%s\\n' "$KIND" ;;
  "version "*) echo "${ENGINE:-28.0.0}" ;;
  "compose version "*) echo "${COMPOSE:-2.40.0}" ;;
  "info "*) echo '{"DockerRootDir": "/", "Runtimes": {}}' ;;
  "image inspect "*) echo sha256:1 ;;
  "ps "*) printf "$CONTAINERS" ;;
  *" ps --services") echo minio gateway prometheus grafana mlflow notebook ;;
  *" config --format json") echo '{"services": {"dcgm-exporter": {"image": "dcgm"}, "gateway": {"image": "ours"}}}' ;;
  *dcgm-exporter) echo 'could not select device driver "nvidia"' >&2; exit 1 ;;
esac
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a program in place of Docker, which answers as variables say."""
    (tmp_path / "bin").mkdir()
    program(tmp_path, "docker", DOCKER)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    shutil.copy(CHECKOUT / ".env.example", tmp_path / ".env")
    monkeypatch.setenv("MLPLATFORM_VERSION", "0")
    monkeypatch.setenv("DISK_NEEDED_GB", "0")
    (tmp_path / "images/ray").mkdir(parents=True)
    shutil.copy(CHECKOUT / "images/ray/requirements.txt", tmp_path / "images/ray")
    return tmp_path


def program(root: Path, name: str, script: str) -> None:
    file = root / "bin" / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def problems(root: Path) -> str:
    """Sentences with which a start is refused; empty if it is not."""
    try:
        doctor.check_host(root)
    except HostError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("KIND", "Client: Podman Engine\nVersion: 5.6.2", "is Podman here"),
        ("KIND", "Client: Docker Engine\nServer: linux/amd64\n Podman Engine:\n  Version: 4.9.3", "is Podman here"),
        ("ENGINE", "24.0.9", "Engine 24.0.9 is too old: 25.0 or later"),
        ("ENGINE", "dev", ""),
        ("ENGINE", "0.0.0-20260301-dev", ""),
        ("COMPOSE", "v2.24.7", "Compose v2.24.7 is too old: 2.25 or later"),
        ("COMPOSE", "2.9.0", "Compose 2.9.0 is too old"),
        ("COMPOSE", "2.25.0", ""),
        ("COMPOSE", "2.37.1+ds1-0ubuntu2~24.04.1", ""),
        ("COMPOSE", "v2.27.0-desktop.2", ""),
        ("COMPOSE", "5.7.1", ""),
        ("COMPOSE", "dev", ""),
    ],
)
def test_unusable_engine_or_compose_is_named(
    root: Path, variable: str, value: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    assert problems(root) == "" if not expected else expected in problems(root)
    assert [*engine.problems()] == ([problems(root)] if expected else [])


@pytest.mark.parametrize(("version", "status"), [("24.0.9", 1), ("25.0.0", 0)])
def test_old_engine_stops_build(root: Path, version: str, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE", version)
    build = [sys.executable, "-m", "mlplatform.stack.engine"]
    done = subprocess.run(build, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert done.stderr == ("Docker Engine 24.0.9 is too old: 25.0 or later is needed.\n" if status else "")


def test_containers_of_others_with_our_names_are_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = ("postgres\\tsupabase", "gateway\\t", "ray-worker-1\\tother", "kibana\\telk", "mlflow\\tmlplatform")
    monkeypatch.setenv("CONTAINERS", "\\n".join(theirs))
    assert "(gateway, postgres, ray-worker-1): set STACK_PREFIX in .env" in problems(root)
    monkeypatch.setenv("STACK_PREFIX", "ml-")
    assert problems(root) == ""
    monkeypatch.setenv("CONTAINERS", "ml-grafana\\tml-mlplatform\\nml-minio\\tmlplatform")
    assert "(ml-minio): set STACK_PREFIX" in problems(root)


def test_every_name_of_container_is_checked(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names come from the table of services, and those outside of it from the check itself."""
    monkeypatch.setenv("COMPOSE_PROFILES", ",".join(stack_services.ALL_PROFILES))
    monkeypatch.setenv("BIND_ADDRESS", "127.0.0.2")
    files = [path.read_text() for path in (CHECKOUT / "compose").glob("*.yaml") if "generated" not in path.name]
    names = {name for text in files for name in re.findall(r"container_name: \$\{STACK_PREFIX:-\}(\S+)", text)}
    monkeypatch.setenv("CONTAINERS", "\\n".join(f"{name}\\tother" for name in names))
    (found,) = re.findall(r"of the stack's \((.*?)\)", problems(root))
    assert set(found.split(", ")) == names


@pytest.mark.parametrize(
    ("driver", "gpus", "index", "expected"),
    [
        ("580.65.06", "9.0, NVIDIA H100", "", []),
        ("610.10", "7.5, Tesla T4\n12.0, NVIDIA RTX 5090", "", []),
        ("570.211.01", "8.0, NVIDIA A100-SXM4-80GB", "", ["driver 570.211.01 is older than 580"]),
        ("590.1", "7.0, Tesla V100-SXM2-16GB", "", ["GPU Tesla V100-SXM2-16GB has compute capability 7.0"]),
        ("470.256.02", "6.1, GTX 1080\n6.1, GTX 1080", "", ["driver 470.256.02 is older", "GPU GTX 1080 has"]),
        ("535.1", "6.1, GTX 1080", "https://wheels.example.org/cu126", []),
        ("[N/A]", "[N/A], Orin (nvgpu)", "", []),
    ],
)
def test_driver_and_gpu_that_torch_does_not_support_are_named(
    root: Path, driver: str, gpus: str, index: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    count = len(gpus.splitlines())
    script = f"case $1 in --query-gpu=driver*) printf '{driver}\\n%.0s' $(seq {count}) ;; *) echo '{gpus}' ;; esac"
    program(root, "nvidia-smi", script)
    monkeypatch.setenv("TORCH_INDEX_URL", index)
    found = [line for line in problems(root).splitlines() if "CUDA" in line]
    assert found == [], "the host's GPUs do not matter with ACCELERATOR=cpu"
    monkeypatch.setenv("ACCELERATOR", "cuda")
    found = [line for line in problems(root).splitlines() if "torch for CUDA" in line]
    assert [part in line for part, line in zip(expected, found, strict=True)] == [True] * len(expected)
    assert all(": " in line and "TORCH_INDEX_URL" in line for line in found)


def test_exporter_that_cannot_start_does_not_fail_start(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ACCELERATOR", "cuda")
    monkeypatch.setenv("COMPOSE_PROFILES", "ray,gpu-metrics")
    (root / "bin/docker.calls").unlink(missing_ok=True)
    compose.up(root)
    assert "Note: dcgm-exporter did not start" in capfd.readouterr().err
    starts = [line for line in (root / "bin/docker.calls").read_text().splitlines() if " up --detach" in line]
    assert len(starts) == 2
    assert "--wait" in starts[0]
    assert "gpu-metrics" not in starts[0].partition(":")[0]
    assert "--wait" not in starts[1]


def test_scripts_have_unix_line_ends_in_clones_on_windows(tmp_path: Path) -> None:
    command = ["git", "-c", "core.autocrlf=true", "checkout-index", "--all", f"--prefix={tmp_path}/"]
    subprocess.run(command, cwd=CHECKOUT, check=True)
    for pattern in ("images/**/*", "docker/**/*", "platform/*.sh", "tests/stack/*.sh"):
        files = [path for path in tmp_path.glob(pattern) if path.is_file()]
        assert files
        assert [path for path in files if b"\r\n" in path.read_bytes()] == []


def test_images_are_built_by_builder_of_current_context(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others, as after `docker buildx create --use`, do not see the images that ours are built on."""
    program(root, "docker", 'echo "${DOCKER_CONTEXT:-default}"')
    command = ["make", "--silent", "--eval", "shown: ; @echo $$BUILDX_BUILDER", "shown"]
    for context in ("", "gpu-host"):
        monkeypatch.setenv("DOCKER_CONTEXT", context)
        monkeypatch.setenv("BUILDX_BUILDER", "remote")
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True)
        assert done.stdout.split() == [context or "default"]


def test_lists_of_host_and_stack_agree_on_exporters() -> None:
    for accelerator, name in stack_services.GPU_EXPORTERS.items():
        services = yaml.safe_load((CHECKOUT / f"compose/monitoring.{accelerator}.yaml").read_text())["services"]
        assert [*services] == [name]
        assert services[name]["profiles"] == [stack_services.GPU_METRICS]
        # Otherwise pages and alerts would name the container's id, which changes with each recreation.
        assert services[name]["hostname"].startswith("${HOST_NAME:-")
