"""Other builds of torch, from TORCH_INDEX_URL: the ray image's installation with uv and indexes on this machine.

The indexes have a wheel without content for each pin of the image, which torch's wheel needs, so that each pin counts.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from embedded import completed
from package_index import served, wheel
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

RAY = Path(__file__).parents[2] / "images" / "ray"
UV = Path(sys.executable).with_name("uv")
IMAGE = {
    "python_full_version": "3.13.5",
    "python_version": "3.13",
    "sys_platform": "linux",
    "platform_machine": "x86_64",
}


def pins() -> dict[str, str]:
    """Versions that the image has, by package, of those that requirements.txt pins for some machine."""
    lines = re.findall(r"^[\w.-]+==[^\\\n]+", (RAY / "requirements.txt").read_text(), re.M)
    found = [Requirement(line) for line in lines]
    return {each.name: str(each.specifier)[2:] for each in found if not each.marker or each.marker.evaluate(IMAGE)}


PINS = pins()
TORCH = PINS["torch"]
OTHERS = sorted(name for name in PINS if not name.startswith(("torch", "nvidia-", "cuda", "triton")))


def torch_files(hip: str | None, cuda: str | None) -> dict[str, str]:
    """Modules that tell what a build of torch is for, as the real ones do."""
    return {"torch/__init__.py": "from torch import version\n", "torch/version.py": f"hip = {hip!r}\ncuda = {cuda!r}\n"}


def add_torch(index: Path, local: str, hip: str | None, cuda: str | None) -> None:
    """Add a build of torch, which needs all other packages of the image, and one of torchvision."""
    wheel(index, "torch", TORCH + local, *OTHERS, files=torch_files(hip, cuda))
    wheel(index, "torchvision", PINS["torchvision"] + local, f"torch=={TORCH}{local}")


@pytest.fixture(scope="module")
def default_index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("default")
    for name, version in PINS.items():
        wheel(folder, name, version)
        wheel(folder, name, "9999")
    wheel(folder, "pyrsmi", "1.0")
    add_torch(folder, "", None, "13.2")
    with served(folder) as address:
        yield address


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def image(tmp_path: Path, cache: Path) -> Path:
    """The files that the image's build copies, and its programs: uv for Python 3.13, into the test's environment."""
    shutil.copytree(RAY, tmp_path / "ray")
    environment, programs = tmp_path / "environment", tmp_path / "programs"
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, environment], check=True)
    programs.mkdir()
    lines = {
        "uv": f'shift 4; UV_CACHE_DIR={cache} exec {UV} pip install --python {environment} --python-version 3.13 "$@"',
        "python": f'case $1 in -m) ;; *) exec {environment}/bin/python "$@" ;; esac',
        "apt-get": ":",
    }
    for name, line in lines.items():
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)
    return tmp_path


def install(image: Path, accelerator: str, default: str, other: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{image}/programs:{os.defpath}", "HOME": str(image), "ACCELERATOR": accelerator}
    environment |= {"PIP_INDEX_URL": default, "TORCH_INDEX_URL": other}
    return completed("sh", image / "ray" / "install.sh", env=environment)


def installed(image: Path) -> dict[str, str]:
    packages = (image / "environment").glob("lib/*/site-packages/*.dist-info")
    found = (package.name.removesuffix(".dist-info").split("-", 1) for package in packages)
    return {canonicalize_name(name): version for name, version in found}


@pytest.mark.parametrize(
    ("accelerator", "local", "hip", "cuda"),
    [("rocm", "+rocm7.2", "7.2.0", None), ("cuda", "+cu126", None, "12.6"), ("cpu", "+cpu", None, None)],
)
def test_all_pins_fit_builds_of_other_index(
    image: Path, default_index: str, accelerator: str, local: str, hip: str | None, cuda: str | None
) -> None:
    add_torch(image / "index", local, hip, cuda)
    with served(image / "index") as other:
        done = install(image, accelerator, default_index, other)
    assert done.returncode == 0, done.stderr
    found = installed(image)
    assert found["torch"] == TORCH + local
    assert {name: found[name] for name in OTHERS} == {name: PINS[name] for name in OTHERS}
    assert ("pyrsmi" in found) == (accelerator == "rocm")


@pytest.mark.parametrize(("accelerator", "version", "hip"), [("cuda", "2.9.1", None), ("rocm", TORCH, None)])
def test_index_without_fitting_build_is_refused(
    image: Path, default_index: str, accelerator: str, version: str, hip: str | None
) -> None:
    wheel(image / "index", "torch", f"{version}+other", files=torch_files(hip, None))
    with served(image / "index") as other:
        done = install(image, accelerator, default_index, other)
    assert done.returncode
    assert f"TORCH_INDEX_URL has no build of torch {TORCH} for ACCELERATOR={accelerator}" in done.stderr
