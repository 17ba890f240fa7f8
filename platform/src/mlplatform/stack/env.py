"""The host's `.env`, filled in with detected hardware, and the settings of a client on this host."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

from mlplatform.files import atomic
from mlplatform.settings.job import Settings
from mlplatform.settings.stack import StackSettings
from mlplatform.stack import secrets_folder
from mlplatform.stack.services import GPU_PROFILES
from mlplatform.stack.workers import render_workers


def write_env(root: Path) -> list[str]:
    """Write `.env`, `secrets/` and, for a GPU count without a shipped file, the workers' compose file, if missing.

    An existing `.env` changes in one line: MLPLATFORM_VERSION, the tag of the images that this checkout builds.
    Otherwise that line would keep the version of the checkout that wrote it.

    Returns:
        One line per file or setting that was written, for display.
    """
    written = []
    env_file = root / ".env"
    if not env_file.exists():
        found = detect()
        _write(env_file, _filled((root / ".env.example").read_text(), found))
        written.append(f".env for ACCELERATOR={found['ACCELERATOR']}, WORKER_LAYOUT={found['WORKER_LAYOUT']}")
    written += _write_version(env_file, checkout_version(root))
    settings = StackSettings.load(env_file)
    written += [f"secrets/{name}" for name in secrets_folder.write_missing(root / "secrets")]
    generated = root / "compose" / f"workers.{settings.accelerator}.generated.yaml"
    if settings.worker_layout == "generated" and not generated.exists():
        generated.write_text(render_workers(settings.accelerator, len(_gpus(settings.accelerator)) or 1))
        written.append(f"compose/{generated.name}")
    return written


def checkout_version(root: Path) -> str:
    """Return the version of a checkout: that of its Python distribution."""
    return str(tomllib.loads((root / "platform" / "pyproject.toml").read_text())["project"]["version"])


def _write_version(env_file: Path, version: str) -> list[str]:
    line = f"MLPLATFORM_VERSION={version}"
    before = env_file.read_text()
    after, count = re.subn(r"^MLPLATFORM_VERSION=.*$", line, before, flags=re.M)
    after = after if count else f"{line}\n{before}"
    if after == before:
        return []
    _write(env_file, after)
    stale = re.search(r"^MLPLATFORM_VERSION=(.+)$", before, re.M)
    return [f"{line} into .env, which had {stale[1]}"] if stale else []


def _write(path: Path, text: str) -> None:
    with atomic.new_file(path) as draft:
        draft.write_text(text)


def detect() -> dict[str, str]:
    """Return the settings that follow from this host's hardware."""
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
        found["COMPOSE_PROFILES"] = ",".join(GPU_PROFILES)
    return found


def client_settings(root: Path) -> Settings:
    """Return a client's settings on this host, or on a laptop with the forwarded ports and a copy of `secrets/`."""
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
    """Return one line per GPU of that kind on this host."""
    if accelerator == "cuda" and shutil.which("nvidia-smi"):
        listing = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=False)
        return listing.stdout.splitlines() if listing.returncode == 0 else []
    if accelerator == "rocm" and Path("/dev/kfd").exists():
        # One node per GPU; the CPU's node has no SIMD units.
        nodes = Path("/sys/class/kfd/kfd/topology/nodes").glob("*/properties")
        return [str(node.parent) for node in nodes if re.search(r"^simd_count [1-9]", node.read_text(), re.M)]
    return []


def _open_files(wanted: int = 65536) -> int:
    """Return the limit of open files for containers: at most the engine's own."""
    try:
        pid = Path("/var/run/docker.pid").read_text().strip()
        limit = re.search(r"^Max open files +\d+ +(\d+)", Path(f"/proc/{pid}/limits").read_text(), re.M)
    except OSError:  # an engine that runs elsewhere, or is not yet running
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
