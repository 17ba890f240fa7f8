"""The host's `.env` and what is detected for it; settings of a client on this host."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from mlplatform.settings.job import Settings
from mlplatform.settings.stack import StackSettings
from mlplatform.stack import secrets_folder
from mlplatform.stack.workers import render_workers


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
    written += [f"secrets/{name}" for name in secrets_folder.write_missing(root / "secrets")]
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
