"""Archives of `make bundle`: what is refused before anything changes, and what a host takes from one."""

import gzip
import io
import json
import os
import platform
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from mlplatform_stack.env import checkout_version

CHECKOUT = Path(__file__).parents[3]
IMAGES = ["mlplatform-ray:1", "postgres:17"]
PACKAGES = f"mlplatform-bundle:{checkout_version(CHECKOUT)}-{platform.machine()}"

DOCKER = """#!/bin/sh
# Images are files.
cd "$ENGINE"
case "$1 $2" in
  "image inspect") shift 2; ls "$@" ;;
  "image rm") rm "$3" ;;
  "create "*) [ -f "$2" ] && echo container ;;
  "cp container:/wheels/.") echo package >"$3/one.whl" ;;
  load*) echo loaded >>log; tar -xzOf "$3" manifest.json | grep -oE '[a-z-]+:[0-9][0-9a-z._-]*' | xargs touch ;;
esac
"""


@dataclass
class Machine:
    """A host with a checkout, an engine without images, and Python without packages."""

    root: Path
    engine: Path
    path: str

    def use(self, archive: Path) -> subprocess.CompletedProcess[str]:
        variables = {"PATH": self.path, "ENGINE": str(self.engine)}
        command = [str(CHECKOUT / "platform/unbundle.sh"), str(archive)]
        return subprocess.run(command, cwd=self.root, env=variables, capture_output=True, text=True, check=False)

    def is_unchanged(self) -> bool:
        return not list(self.engine.iterdir()) and not (self.root / ".venv").exists()


@pytest.fixture
def machine(tmp_path: Path, program: Callable[[str, str], Path]) -> Machine:
    for folder in (tmp_path / "root" / "platform", tmp_path / "engine"):
        folder.mkdir(parents=True)
    shutil.copy(CHECKOUT / "platform" / "pyproject.toml", tmp_path / "root" / "platform")
    program("docker", DOCKER)
    return Machine(tmp_path / "root", tmp_path / "engine", os.environ["PATH"])


def written(path: Path, packages: str = PACKAGES) -> Path:
    """An archive as `docker save` writes it, with the names of the images above."""
    content = json.dumps([{"RepoTags": [name]} for name in [*IMAGES, packages]]).encode()
    with gzip.open(path, "wb") as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in (("blobs/layer", os.urandom(9000)), ("manifest.json", content), ("blobs/more", b"x" * 9000)):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def test_packages_and_images_are_taken_from_bundle(machine: Machine, tmp_path: Path) -> None:
    done = machine.use(written(tmp_path / "stack.bundle"))
    assert done.returncode == 0, done.stderr
    assert (machine.root / ".venv/wheels/one.whl").read_text() == "package\n"
    assert {path.name for path in machine.engine.iterdir()} == {*IMAGES, "log"}


def test_loaded_images_are_not_loaded_again(machine: Machine, tmp_path: Path) -> None:
    archive = written(tmp_path / "stack.bundle")
    for _ in range(2):
        assert machine.use(archive).returncode == 0
    assert (machine.engine / "log").read_text() == "loaded\n"
    (machine.engine / IMAGES[0]).unlink()
    assert machine.use(archive).returncode == 0
    assert (machine.engine / IMAGES[0]).exists()
    machine.use(written(tmp_path / "newer.bundle"))
    assert (machine.engine / "log").read_text() == "loaded\n" * 3


def cut(content: bytes, part: float) -> bytes:
    return content[: int(len(content) * part)]


def altered(content: bytes, part: float) -> bytes:
    place = int(len(content) * part)
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize(
    "damaged",
    [
        *(partial(cut, part=part) for part in (0.1, 0.5, 0.7, 0.9, 0.99)),
        *(partial(altered, part=part) for part in (0.1, 0.5, 0.9)),
        *(lambda _: b"", lambda _: b"text" * 1000, None),
    ],
)
def test_damaged_or_other_file_changes_nothing(
    machine: Machine, tmp_path: Path, damaged: Callable[[bytes], bytes] | None
) -> None:
    archive = written(tmp_path / "stack.bundle")
    archive.write_bytes(damaged(archive.read_bytes())) if damaged else archive.unlink()
    done = machine.use(archive)
    assert done.returncode == 1
    assert "Nothing was changed" in done.stderr
    assert machine.is_unchanged()


@pytest.mark.parametrize(
    ("packages", "expected"),
    [
        (PACKAGES.replace(checkout_version(CHECKOUT), "0.0.1"), r"is for version and processor 0.0.1-"),
        (PACKAGES.replace(platform.machine(), "pdp11"), r"-pdp11, not "),
        ("other:1", "is not an archive of `make bundle`"),
    ],
)
def test_bundle_for_another_host_changes_nothing(
    machine: Machine, tmp_path: Path, packages: str, expected: str
) -> None:
    done = machine.use(written(tmp_path / "stack.bundle", packages))
    assert expected in done.stderr
    assert machine.is_unchanged()


def test_missing_docker_is_named_before_anything_changes(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "bin" / "docker").unlink()
    (tmp_path / "bin" / "bash").symlink_to("/bin/bash")
    machine.path = str(tmp_path / "bin")
    done = machine.use(written(tmp_path / "stack.bundle"))
    assert "install Docker Engine 25 or later" in done.stderr
    assert machine.is_unchanged()


def dry_run(folder: Path, *words: str) -> list[str]:
    """Lines that make would run in a checkout with its virtual environment still to be made."""
    projects = [f"platform/{name}/pyproject.toml" for name in (".", "mlplatform", "gateway", "stack", "warm")]
    for name in ("platform/requirements.txt", "platform/mlplatform/mlplatform.pth", *projects):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    command = ["make", "--no-print-directory", "--dry-run", "--makefile", str(CHECKOUT / "Makefile"), *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.splitlines()


def test_start_from_bundle_verifies_first_and_builds_nothing(tmp_path: Path) -> None:
    lines = dry_run(tmp_path, "up", "BUNDLE=stack.bundle")
    assert lines[0] == 'platform/unbundle.sh "stack.bundle"'
    assert not [line for line in lines if " build " in line]
    assert lines[-1].startswith(".venv/bin/mlplatform stack up")


def test_start_from_bundle_asks_for_no_digest() -> None:
    printed = ["make", "--no-print-directory", "--eval", "show: ; @env", "show"]
    for more, expected in (([], False), (["BUNDLE=stack.bundle"], True)):
        lines = subprocess.run([*printed, *more], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
        assert ("\nPOSTGRES_DIGEST=\n" in lines) is expected


@pytest.mark.parametrize(
    ("image", "built"), [("mlplatform-minio:0.4.0", True), ("quay.io/minio:1", False), ("postgres:17", False)]
)
def test_build_leaves_out_minio_of_others(
    tmp_path: Path, program: Callable[[str, str], Path], image: str, built: bool
) -> None:
    """The last image is that of a stack with another S3 server."""
    (line,) = (line for line in dry_run(tmp_path, "build") if " build storage-init " in line)
    program("docker", f'case "$*" in *" config "*) echo {image} ;; *) echo "$*" ;; esac')
    words = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True).stdout.split()
    assert ("minio" in words) is built
    assert words[-2:] == ["ray-head", "proxy"]
