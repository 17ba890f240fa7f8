"""Engines on which the stack cannot start: kind, version, labels, rights, and names that containers of others have."""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from compose_files import checkout

from mlplatform.errors import HostError
from mlplatform_stack import compose, declared, engine, networks, preflight
from mlplatform_stack import services as stack_services
from mlplatform_stack.checks import start
from mlplatform_stack.checks.finding import Place
from mlplatform_stack.settings import StackSettings

CHECKOUT = Path(__file__).parents[3]
Program = Callable[[str, str], Path]

DOCKER = """\
echo "$COMPOSE_PROFILES: $*" >>"$0.calls"
case "$*" in
  version) printf '%s\\n' "$KIND" ;;
  "version "*) echo "${ENGINE:-28.0.0}" ;;
  "compose version "*) echo "${COMPOSE:-2.40.0}" ;;
  "info "*) echo '{"DockerRootDir": "/", "Runtimes": {}, "SecurityOptions": ['"$OPTIONS"']}' ;;
  "image inspect "*) echo sha256:1 ;;
  "ps "*) printf "$CONTAINERS" ;;
  "run "*) eval "${PROBE:-exit 1}" ;;
  *" ps --services") echo minio gateway prometheus grafana mlflow notebook ;;
  *" config --format json") echo "$SERVICES" ;;
  *dcgm-exporter) echo 'could not select device driver "nvidia"' >&2; exit 1 ;;
esac
"""


@pytest.fixture
def root(root: Path, program: Program, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a program in place of Docker, which answers as variables say."""
    program("docker", DOCKER)
    (root / ".env.example").rename(root / ".env")
    monkeypatch.setenv("MLPLATFORM_VERSION", "0")
    monkeypatch.setenv("DISK_NEEDED_GB", "0")
    configure(monkeypatch, "gateway", "dcgm-exporter")
    (root / "images/ray").mkdir(parents=True)
    shutil.copy(CHECKOUT / "images/ray/requirements.txt", root / "images/ray")
    return root


def configure(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let Compose report these services, with containers of their names."""
    services = {name: {"image": f"image-of-{name}", "container_name": name} for name in names}
    monkeypatch.setenv("SERVICES", json.dumps({"services": services}))


def problems(root: Path) -> str:
    """Sentences with which a start is refused; empty if it is not."""
    try:
        preflight.check_host(root)
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
    build = [sys.executable, "-m", "mlplatform_stack.engine"]
    done = subprocess.run(build, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert done.stderr == ("Docker Engine 24.0.9 is too old: 25.0 or later is needed.\n" if status else "")


def test_engine_with_selinux_needs_label_on_mounted_folders(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels: dict[str, str] = {}

    def getxattr(path: str | Path, name: str) -> bytes:
        if name == "security.selinux" and str(path) in labels:
            return f"unconfined_u:object_r:{labels[str(path)]}:s0\0".encode()
        raise OSError(errno.ENODATA, "No data available")

    monkeypatch.setattr(os, "getxattr", getxattr)
    monkeypatch.setenv("BACKUP_TO", "/mnt/backups")
    mounted = [str(root / "docker"), str(root / "secrets"), "/mnt/backups"]
    assert problems(root) == ""
    monkeypatch.setenv("OPTIONS", '"name=seccomp,profile=builtin", "name=selinux"')
    assert f"sudo chcon -R -t container_file_t {' '.join(mounted)}`" in problems(root)
    labels |= {mounted[0]: "container_file_t", mounted[1]: "user_home_t"}
    assert f"chcon -R -t container_file_t {' '.join(mounted[1:])}`" in problems(root)
    labels |= dict.fromkeys(mounted, "container_file_t")
    assert problems(root) == ""


def test_containers_of_others_with_our_names_are_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, "postgres", "gateway", "ray-worker-1", "mlflow")
    theirs = ("postgres\\tsupabase", "gateway\\t", "ray-worker-1\\tother", "kibana\\telk", "mlflow\\tmlplatform")
    monkeypatch.setenv("CONTAINERS", "\\n".join(theirs))
    assert "(gateway, postgres, ray-worker-1): set STACK_PREFIX in .env" in problems(root)
    monkeypatch.setenv("STACK_PREFIX", "ml-")
    configure(monkeypatch, "ml-grafana", "ml-minio")
    monkeypatch.setenv("CONTAINERS", "ml-grafana\\tml-mlplatform\\nml-minio\\tmlplatform")
    assert "(ml-minio): set STACK_PREFIX" in problems(root)


@pytest.mark.parametrize(("probe", "reached"), [("echo open", True), ("echo 'timed out' >&2; exit 1", False)])
def test_reachable_metadata_address_is_noted(
    root: Path, monkeypatch: pytest.MonkeyPatch, probe: str, reached: bool
) -> None:
    monkeypatch.setenv("PROBE", probe)
    noted = [note for note in preflight.check_host(root) if "169.254.169.254" in note]
    assert [note.endswith(f": {networks.METADATA_RULE}") for note in noted] == [True] * reached
    found = list(start.metadata_address(Place(root)))
    assert [(finding.fix, finding.blocks) for finding in found] == [(networks.METADATA_RULE, False)] * reached


@pytest.mark.parametrize("rootless", [False, True])
def test_engine_without_root_needs_ports_and_devices_open_to_it(
    root: Path, rootless: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["name=rootless"] if rootless else []
    monkeypatch.setenv("OPTIONS", ",".join(f'"{option}"' for option in options))
    for name, value in {"COMPOSE_PROFILES": "proxy", "BIND_ADDRESS": "127.0.0.2", "HTTPS_PORT": "443"}.items():
        monkeypatch.setenv(name, value)
    configure(monkeypatch, "proxy")
    bind_error = networks.bind_error

    def denied(address: str, port: int) -> str:
        """Bind as a user other than root."""
        return os.strerror(errno.EACCES) if port == 443 else bind_error(address, 0)

    monkeypatch.setattr(networks, "bind_error", denied)
    expected = "may not publish port 443 of 127.0.0.2: set HTTPS_PORT in .env to a port above 1023"
    assert (expected in problems(root)) == rootless
    device = root / "dev/kfd"
    device.parent.mkdir()
    device.touch()
    settings = StackSettings.load(root / ".env", accelerator="rocm")
    for mode, count in ((0o660, int(rootless)), (0o666, 0)):
        device.chmod(mode)
        found = [*engine.restrictions(root, settings, options, device.parent)]
        assert [f"chmod o+rw {device}" in problem for problem in found] == [True] * count


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
    root: Path,
    program: Program,
    driver: str,
    gpus: str,
    index: str,
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = len(gpus.splitlines())
    script = f"case $1 in --query-gpu=driver*) printf '{driver}\\n%.0s' $(seq {count}) ;; *) echo '{gpus}' ;; esac"
    program("nvidia-smi", script)
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


def test_images_are_built_by_builder_of_current_context(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others, as after `docker buildx create --use`, do not see the images that ours are built on."""
    program("docker", 'echo "${DOCKER_CONTEXT:-default}"')
    command = ["make", "--silent", "--eval", "shown: ; @echo $$BUILDX_BUILDER", "shown"]
    for context in ("", "gpu-host"):
        monkeypatch.setenv("DOCKER_CONTEXT", context)
        monkeypatch.setenv("BUILDX_BUILDER", "remote")
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True)
        assert done.stdout.split() == [context or "default"]


@pytest.mark.parametrize(("accelerator", "exporter"), [("cuda", "dcgm-exporter"), ("rocm", "amd-exporter")])
def test_exporter_of_accelerator_names_gpus_by_host(tmp_path: Path, accelerator: str, exporter: str) -> None:
    root = checkout(tmp_path, ACCELERATOR=accelerator)
    found = declared.services(root)
    assert set(found) & set(stack_services.exporters(root)) == {exporter}
    # Otherwise pages and alerts would name the container's id, which changes with each recreation.
    assert found[exporter]["hostname"].startswith("${HOST_NAME:-")


def test_stack_without_gpus_has_no_exporter(tmp_path: Path) -> None:
    root = checkout(tmp_path)
    assert stack_services.exporters(root) == ["dcgm-exporter", "amd-exporter"]
    assert not set(declared.services(root)) & {"dcgm-exporter", "amd-exporter"}
