"""Supply of the stack: digests of images, from a registry on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from compose_files import checkout
from host import CHECKOUT, run, wait_for

from mlplatform.local.processes import free_ports
from mlplatform_stack import image_lock

REGISTRY = """
version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a registry, from Debian's package."""
    if not shutil.which("docker-registry"):
        run("apt-get", "update", "-qq")
        run("apt-get", "install", "-y", "-qq", "--no-install-recommends", "docker-registry")
    folder, (port,) = tmp_path_factory.mktemp("registry"), free_ports(1)
    (folder / "config.yml").write_text(REGISTRY.format(folder=folder / "images", port=port))
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(["docker-registry", "serve", folder / "config.yml"], stdout=log, stderr=log)
    try:
        wait_for(lambda: httpx.get(f"http://127.0.0.1:{port}/v2/").is_success, "the registry", 30)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture
def pushed(registry: str, tmp_path: Path) -> Iterator[str]:
    """A small image in the registry."""
    image = f"{registry}/service:1.0"
    # Its own contents, because an image has the digests of all repositories that it was pushed to.
    (tmp_path / "Dockerfile").write_text(f"FROM scratch\n# {tmp_path}\nCOPY Dockerfile /\n")
    run("docker", "build", "--tag", image, str(tmp_path))
    run("docker", "push", image)
    identity = run("docker", "image", "inspect", "--format", "{{.Id}}", image).stdout.strip()
    yield image
    run("docker", "image", "rm", "--force", identity, check=False)


def test_lock_has_digest_that_registry_serves(pushed: str, registry: str) -> None:
    (pulled,) = json.loads(run("docker", "image", "inspect", "--format", "{{json .RepoDigests}}", pushed).stdout)
    assert image_lock.seen_digest(pushed) == pulled.removeprefix(f"{registry}/service")
    assert image_lock.seen_digest(f"{registry}/service:2.0") == ""
    assert image_lock.seen_digest("127.0.0.1:1/service:1.0") == ""


def test_compose_starts_and_builds_from_locked_digests(pushed: str, tmp_path: Path) -> None:
    checkout(tmp_path)
    shutil.copytree(CHECKOUT / "images", tmp_path / "images")
    storage = tmp_path / "compose/storage.yaml"
    storage.write_text(storage.read_text().replace("postgres:17.11-trixie", pushed))
    image_lock.lock(tmp_path)
    digest = image_lock.seen_digest(pushed)
    text = (tmp_path / image_lock.LOCK).read_text()
    (tmp_path / image_lock.LOCK).write_text(text.replace("DEBIAN_DIGEST=\n", f"DEBIAN_DIGEST={digest}\n"))

    def services(**variables: str) -> dict[str, dict[str, object]]:
        command = ["docker", "compose", "--env-file", str(CHECKOUT / ".env.example"), "--profile", "*"]
        command += ["--file", str(tmp_path / "compose/compose.yaml"), "config", "--format", "json"]
        environment = {**os.environ, "MLPLATFORM_VERSION": "any", **variables}
        return dict(json.loads(run(*command, env=environment).stdout)["services"])

    found = services()
    assert found["postgres"]["image"] == f"{pushed}{digest}"
    built = [service["build"]["args"] for service in found.values() if "DEBIAN_DIGEST" in str(service.get("build"))]
    assert [arguments["DEBIAN_DIGEST"] for arguments in built] == [digest] * 4
    run("docker", "image", "rm", "--force", pushed)
    run("docker", "pull", f"{pushed}{digest}")
    # The choice of an operator, which has no digest here.
    assert services(POSTGRES_IMAGE="registry.example.org/postgres:17")["postgres"]["image"].endswith("/postgres:17")
