"""The stack on this host: its `.env` and secrets, and the way it is started and shown."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mlplatform import credentials
from mlplatform.errors import HostError, SettingsError
from mlplatform.settings import Settings, StackSettings, environment

# What `make up ONLY=...` starts; each leaves the other half out.
ONLY = {
    "tracking": ("tracking", "notebook", "monitoring", "grafana"),
    "ray": ("ray", "notebook", "monitoring", "grafana", "gpu-metrics"),
}

START_TIMEOUT = 300
"""Seconds until services that are not healthy are reported as failed."""


@dataclass(frozen=True)
class Page:
    """A port that the stack publishes: which service has it, when, and what to log in with."""

    title: str
    service: str
    profile: str | None
    setting: str
    port: int
    login: str


def pages(settings: StackSettings) -> list[Page]:
    """Every published port, in the order in which people need them."""

    def page(title: str, service: str, profile: str | None, setting: str, login: str) -> Page:
        return Page(title, service, profile, setting, getattr(settings, setting.lower()), login)

    return [
        page("JupyterLab", "notebook", "notebook", "NOTEBOOK_PORT", "token in secrets/notebook_token"),
        page("Ray dashboard and jobs", "gateway", "ray", "RAY_PORT", "token in secrets/ray_token"),
        page("MLflow", "mlflow", "tracking", "MLFLOW_PORT", "user and password in secrets/mlflow_person"),
        page("Grafana", "grafana", "grafana", "GRAFANA_PORT", "admin, password in secrets/grafana_password"),
        page(
            "Prometheus",
            "prometheus",
            "monitoring",
            "PROMETHEUS_PORT",
            "prometheus, password in secrets/prometheus_password",
        ),
        page("MinIO console", "minio", None, "MINIO_CONSOLE_PORT", "key and secret in secrets/minio_person"),
        page("MinIO (S3)", "minio", None, "MINIO_PORT", "key and secret in secrets/minio_person"),
    ]


def write_env(root: Path) -> list[str]:
    """Make `.env`, `secrets/` and, for a GPU count that has no file, the workers' compose file; each only if missing.

    Returns:
        What was written, for people.
    """
    written = []
    env_file = root / ".env"
    if not env_file.exists():
        found = detect()
        draft = root / ".env.draft"
        draft.write_text(_filled((root / ".env.example").read_text(), found))
        draft.rename(env_file)
        written.append(f".env for ACCELERATOR={found['ACCELERATOR']}, WORKER_LAYOUT={found['WORKER_LAYOUT']}")
    settings = StackSettings.load(env_file)
    written += [f"secrets/{name}" for name in credentials.write_missing(root / "secrets")]
    generated = root / "compose" / f"workers.{settings.accelerator}.generated.yaml"
    if settings.worker_layout == "generated" and not generated.exists():
        generated.write_text(render_workers(settings.accelerator, len(_gpus(settings.accelerator)) or 1))
        written.append(f"compose/{generated.name}")
    return written


def detect() -> dict[str, str]:
    """Settings that follow from this host's hardware."""
    accelerator = next((name for name in ("cuda", "rocm") if _gpus(name)), "cpu")
    count = len(_gpus(accelerator))
    layout = "gpu" if count in (0, 2) else "host"
    found = {
        "ACCELERATOR": accelerator,
        "WORKER_LAYOUT": layout,
        "WORKER_GPUS": str(count if layout == "host" else min(count, 1)),
        "OPEN_FILES": str(_open_files()),
        "RENDER_GID": _render_gid() if accelerator == "rocm" else "",
    }
    if accelerator != "cpu":
        found["COMPOSE_PROFILES"] = "tracking,ray,notebook,monitoring,grafana,gpu-metrics"
    return found


def render_workers(accelerator: str, count: int) -> str:
    """The workers' compose file with one worker for each of `count` GPUs, in the form of the shipped ones."""
    services, volumes = [], []
    for index in range(count):
        lines = [
            f"  ray-worker-{index}:",
            "    extends: {file: base.yaml, service: worker}",
            f"    container_name: ${{STACK_PREFIX:-}}ray-worker-{index}",
            f"    hostname: ray-worker-{index}",
        ]
        if accelerator == "cuda":
            lines += [
                "    deploy:",
                "      resources:",
                "        reservations:",
                f'          devices: [{{driver: nvidia, device_ids: ["{index}"], capabilities: [gpu]}}]',
            ]
        if accelerator == "rocm":
            lines += [
                # Render nodes are numbered from 128 (the kernel's drm_drv.c gives each kind 64 minors).
                f"    devices: [/dev/kfd, /dev/dri/renderD{128 + index}]",
                '    group_add: [video, "${RENDER_GID:-render}"]',
            ]
        lines.append(f'    volumes: ["ray-worker-{index}-logs:/tmp/ray"]')
        services.append("\n".join(lines))
        volumes.append(f"  ray-worker-{index}-logs:")
    mounts = "".join(f"      - ray-worker-{index}-logs:/logs/ray-worker-{index}:ro\n" for index in range(count))
    carrier = (
        "\n\n  log-carrier:\n    extends: {file: base.yaml, service: log-carrier}\n"
        f"    container_name: ${{STACK_PREFIX:-}}log-carrier\n    volumes:\n{mounts}"
    )
    header = f"# Written by `make env` for {count} GPUs; delete it and run `make env` again when their number changes."
    return f"{header}\nservices:\n" + "\n\n".join(services) + carrier + "\nvolumes:\n" + "\n".join(volumes) + "\n"


def compose(root: Path, *arguments: str) -> list[str]:
    """The `docker compose` command on the shipped files, as the Makefile has it."""
    files = ["--env-file", str(root / ".env"), "--file", str(root / "compose" / "compose.yaml")]
    return ["docker", "compose", *files, *arguments]


def up(root: Path, only: str | None = None) -> None:
    """Start the stack, or the half of it that `only` names, and wait until every service is healthy.

    Raises:
        SettingsError: `only` is unknown.
        HostError: a service did not become healthy.
    """
    variables = only_variables(StackSettings.load(root / ".env"), only)
    make_food11_volume(root)
    command = compose(root, "up", "--detach", "--no-build", "--remove-orphans", "--wait", "--wait-timeout")
    result = subprocess.run([*command, str(START_TIMEOUT)], env={**environment(), **variables}, check=False)
    if result.returncode:
        raise HostError(
            f"The stack is not healthy after {START_TIMEOUT} s or less: `make status` shows each container's state "
            f"and `make logs` its last lines.{_last_words(root)}"
        )


def _last_words(root: Path) -> str:
    """The last lines of each container that ended with an error or is not healthy."""
    listing = subprocess.run(
        compose(root, "--profile", "*", "ps", "--all", "--format", "json"), capture_output=True, text=True, check=False
    )
    parts = []
    for container in map(json.loads, listing.stdout.splitlines()):
        if container["Health"] == "unhealthy":
            state = "is unhealthy"
        elif container["State"] in ("exited", "restarting", "dead") and container["ExitCode"]:
            state = f"ended with {container['ExitCode']}"
        else:
            continue
        logs = subprocess.run(
            ["docker", "logs", "--tail", "5", container["Name"]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        parts.append(f"\n{container['Name']} {state}:\n{logs.stdout.strip()}")
    return "".join(parts)


def make_food11_volume(root: Path) -> None:
    """External to Compose, so that no `down --volumes` takes the data set."""
    name = StackSettings.load(root / ".env").food11_volume
    subprocess.run(["docker", "volume", "create", name], check=True, stdout=subprocess.DEVNULL)


def fill_food11(root: Path, source: str, force: bool) -> int:
    """Unpack an archive into the volume, in a container that says itself what it did; returns its exit status.

    Args:
        root: of the checkout.
        source: address, or a path on this host, which the container sees read-only; not needed for a volume that is
            filled.
        force: replace what the volume holds.
    """
    make_food11_volume(root)
    command = compose(root, "run", "--rm")
    if (archive := Path(source).expanduser().absolute()).is_file():
        source = f"/archive/{archive.name}"
        command += ["--volume", f"{archive}:{source}:ro"]
    command += ["food11-data", *([source] if source else []), *(["--force"] if force else [])]
    return subprocess.run(command, check=False).returncode


def running(root: Path) -> set[str]:
    """Names of the services that run now."""
    command = compose(root, "--profile", "*", "ps", "--services")
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise HostError(f"`docker compose ps` failed: {result.stderr.strip()}")
    return set(result.stdout.split())


def client_settings(root: Path) -> Settings:
    """What a shell on this host, or a laptop with the ssh line and a copy of `secrets/`, needs to use the stack."""
    stack = StackSettings.load(root / ".env")
    secrets = root / "secrets"
    return Settings.load(
        tracking_uri=f"http://{stack.bind_address}:{stack.mlflow_port}",
        ray_address=f"http://{stack.bind_address}:{stack.ray_port}",
        ray_auth_token_path=secrets / "ray_token",
        storage="s3://ray",
        s3_endpoint=f"http://{stack.bind_address}:{stack.minio_port}",
        s3_region="us-east-1",
        s3_credentials=secrets / "minio_person",
        driver_label="role=worker",
    )


def ssh_line(shown: Sequence[Page], user_at_host: str) -> str:
    """The one command that brings pages to a laptop, on the same ports."""
    forwards = " ".join(f"-L {page.port}:127.0.0.1:{page.port}" for page in shown)
    return f"ssh -N {forwards} {user_at_host}"


def only_variables(settings: StackSettings, only: str | None) -> dict[str, str]:
    """The variables that leave the other half of the stack out; none where `only` is empty."""
    if not only:
        return {}
    if only not in ONLY:
        raise SettingsError(f"ONLY={only} is unknown; it is one of {', '.join(ONLY)}, or left out for everything.")
    chosen = [profile for profile in settings.profiles.split(",") if profile in ONLY[only]]
    variables = {"COMPOSE_PROFILES": ",".join(chosen)}
    # Empty means: there is none. Jobs and the notebook say so instead of waiting for a server that never comes.
    return {**variables, "TRACKING_ADDRESS": ""} if only == "ray" else {**variables, "JOBS_ADDRESS": ""}


def _gpus(accelerator: str) -> list[str]:
    """One line per GPU of that kind on this host."""
    if accelerator == "cuda" and shutil.which("nvidia-smi"):
        listing = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=False)
        return listing.stdout.splitlines() if listing.returncode == 0 else []
    if accelerator == "rocm" and Path("/dev/kfd").exists():
        # One node per GPU; the CPU's node has no SIMD units.
        nodes = Path("/sys/class/kfd/kfd/topology/nodes").glob("*/properties")
        return [str(node.parent) for node in nodes if re.search(r"^simd_count [1-9]", node.read_text(), re.M)]
    return []


def _open_files(wanted: int = 65536) -> int:
    """Open files that a container can have: a container cannot be given more than the engine has itself."""
    try:
        pid = Path("/var/run/docker.pid").read_text().strip()
        limit = re.search(r"^Max open files +\d+ +(\d+)", Path(f"/proc/{pid}/limits").read_text(), re.M)
    except OSError:  # an engine that runs elsewhere, or not yet
        return wanted
    return min(wanted, int(limit[1])) if limit else wanted


def _render_gid() -> str:
    import grp

    try:
        return str(grp.getgrnam("render").gr_gid)
    except KeyError:
        return ""


def _filled(template: str, values: dict[str, str]) -> str:
    for variable, value in values.items():
        template = re.sub(rf"^{variable}=.*$", f"{variable}={value}", template, flags=re.M)
    return template
