"""The oldest Compose that the stack supports and the newest load each variant of the compose files."""

from __future__ import annotations

import json
import re
import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from compose_files import checkout, generate
from host import CHECKOUT

from mlplatform_stack.engine import MINIMUM_COMPOSE
from mlplatform_stack.settings import StackSettings

LOADER = CHECKOUT / "tests/stack/compose-loader"
RELEASES = re.findall(r"(\d\S+)=v", (LOADER / "Dockerfile").read_text())

STACKS = [
    {"ACCELERATOR": accelerator, "WORKER_LAYOUT": layout, "RENDER_GID": gid}
    for accelerator, layout, gid in product(("cpu", "cuda", "rocm"), ("host", "gpu", "generated"), ("", "109"))
    if gid or accelerator == "rocm"
] + [
    {"S3_ENDPOINT_URL": "https://s3.example.org"},
    {
        **{"STACK_PREFIX": "blue-", "COMPOSE_PROFILES": "tracking,proxy", "DOMAIN": "ml.example.org"},
        "BIND_ADDRESS": "127.0.0.2",
    },
    {"TRACKING_ADDRESS": "", "JOBS_ADDRESS": "", "BACKUP_FOLDER": "/mnt/backups"},
]

JOINED = {
    **{"NODE_NAME": "ray-worker-two", "CLUSTER_NETWORK": "10.213.76", "HOST_NETWORK": "10.213.76.136/29"},
    **{"WORKER_ADDRESS": "10.213.76.137", "SHIPPER_ADDRESS": "10.213.76.138", "COPIES_ADDRESS": "10.213.76.139"},
    **{"LINK_ADDRESS": "10.213.76.140", "GATEWAY_ADDRESS": "10.213.76.141", "HUB_KEY": "key"},
    **{"HUB_ENDPOINT": "192.0.2.1:51820", "MLPLATFORM_VERSION": "1"},
}


@pytest.fixture(scope="module")
def loaders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program per release, named after it."""
    folder = tmp_path_factory.mktemp("loaders")
    subprocess.run(["docker", "build", "--quiet", "--output", str(folder), str(LOADER)], check=True)
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout."""
    return checkout(tmp_path_factory.mktemp("releases"))


def load(loader: Path, env_file: Path, file: Path, variables: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run([loader, env_file, file], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_oldest_loader_is_of_minimum_that_doctor_names() -> None:
    assert RELEASES[0] == ".".join(map(str, (*MINIMUM_COMPOSE, 0)))


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("variables", STACKS, ids=lambda found: "-".join(filter(None, found.values())) or "empty")
def test_release_loads_each_variant_of_stack(
    loaders: Path, root: Path, release: str, variables: dict[str, str]
) -> None:
    example = (CHECKOUT / ".env.example").read_text().replace("MLPLATFORM_VERSION=", "MLPLATFORM_VERSION=1")
    lines = (f"{key}={value}" for key, value in variables.items() if key in example)
    (root / ".env").write_text("\n".join([example, *lines]))
    generate(root, gpus=7)
    settings = StackSettings.load(root / ".env")
    services = load(loaders / release, root / ".env", root / "compose" / "compose.yaml", variables)["services"]
    names = sorted(name for name in services if name.startswith("ray-worker-"))
    generated = 1 if settings.accelerator == "cpu" else 7
    assert len(names) == {"host": 1, "gpu": 2, "generated": generated}[settings.worker_layout]
    assert ("minio" in services) == ("S3_ENDPOINT_URL" not in variables)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("accelerator", ["cpu", "cuda", "rocm"])
def test_release_loads_files_of_joined_host(loaders: Path, root: Path, release: str, accelerator: str) -> None:
    env_file = root / "joined.env"
    lines = [f"{key}={value}" for key, value in {**JOINED, "ACCELERATOR": accelerator}.items()]
    # As two files: the defaults, and what the host has.
    env_file.write_text("\n".join([(CHECKOUT / ".env.example").read_text(), *lines]))
    services = load(loaders / release, env_file, root / "compose/joined/compose.yaml", {})["services"]
    assert {"link", "ray-worker", "log-shipper", "copier"} <= services.keys()
