"""`images/lock.sh` with uv and a package index on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from embedded import completed
from package_index import served, wheel

pytestmark = pytest.mark.nightly

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return tmp_path / "index"


@pytest.fixture
def address(index: Path) -> Iterator[str]:
    with served(index) as address:
        yield address


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout whose ray image needs torch and NVIDIA's library only."""
    root = tmp_path / "checkout"
    shutil.copytree(CHECKOUT / "images", root / "images")
    (root / "images/ray/requirements.in").write_text("torch==2.15.0\nnvidia-ml-py\n")
    pinned = [f"{name} \\\n    --hash=sha256:{'0' * 64}\n" for name in ("torch==2.15.0", "nvidia-ml-py==13.0.0")]
    (root / "images/ray/requirements.txt").write_text("".join(pinned))
    (root / ".venv/bin").mkdir(parents=True)
    (root / ".venv/bin/uv").symlink_to(Path(sys.executable).with_name("uv"))
    return root


def lock(root: Path, only: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ONLY": only, "UV_NO_CACHE": "1", **variables}
    return completed(root / "images/lock.sh", env=environment)


def test_packages_of_team_are_locked_with_what_they_need(root: Path, index: Path, address: str) -> None:
    sums = {"roman": wheel(index, "roman", "5.1", "torch", "numerals>=1"), "numerals": wheel(index, "numerals", "1.2")}
    wheel(index, "torch", "2.15.0")
    with (root / "images/ray/extra-requirements.in").open("a") as file:
        file.write("roman\n")
    done = lock(root, "extra", UV_DEFAULT_INDEX=address)
    assert done.returncode == 0, done.stderr
    text = (root / "images/ray/extra-requirements.txt").read_text()
    for pin, name in (("roman==5.1", "roman"), ("numerals==1.2", "numerals")):
        assert f"{pin} \\\n    --hash=sha256:{sums[name]}" in text
    assert "torch" not in text, "the image has it already, with other hashes for rocm"
    assert address not in text
    wheel(index, "roman", "6.0")
    assert lock(root, "extra", UV_DEFAULT_INDEX=address).returncode == 0
    assert (root / "images/ray/extra-requirements.txt").read_text() == text, "a pinned version changed"


def test_package_that_contradicts_image_is_refused(root: Path, index: Path, address: str) -> None:
    wheel(index, "torch", "2.15.0")
    wheel(index, "torch", "2.14.0")
    before = (root / "images/ray/extra-requirements.txt").read_text()
    (root / "images/ray/extra-requirements.in").write_text("torch==2.14.0\n")
    done = lock(root, "extra", UV_DEFAULT_INDEX=address)
    assert done.returncode
    assert "torch==2.14.0" in done.stderr
    assert (root / "images/ray/extra-requirements.txt").read_text() == before


def test_builds_of_torch_are_locked_from_their_index_only(root: Path, index: Path, address: str) -> None:
    pins = root / "images/ray/torch-requirements.txt"
    done = lock(root, "torch", UV_DEFAULT_INDEX=address)
    assert done.returncode == 0, done.stderr
    assert "unseen: `make lock` ran without TORCH_INDEX_URL" in done.stdout
    wheel(index / "pypi", "torch", "2.15.0", tag="cp313-cp313-manylinux_2_28_x86_64")
    wheel(index / "pypi", "pyrsmi", "1.0")
    built = wheel(index / "rocm", "torch", "2.15.0+rocm7.1", tag="cp313-cp313-manylinux_2_28_x86_64")
    indexes = {"UV_DEFAULT_INDEX": f"{address}pypi/", "TORCH_INDEX_URL": f"{address}rocm/", "ACCELERATOR": "rocm"}
    done = lock(root, "torch", **indexes)
    assert done.returncode == 0, done.stderr
    text = pins.read_text()
    assert f"torch==2.15.0+rocm7.1 \\\n    --hash=sha256:{built}" in text
    assert "pyrsmi==1.0" in text
    assert "# for rocm\n" in text
    assert "nvidia" not in text
    assert lock(root, "torch", UV_DEFAULT_INDEX=f"{address}pypi/").stdout == "", "present pins are unseen"
    assert pins.read_text() == text
    (root / "images/ray/requirements.txt").write_text("torch==2.16.0\n")
    assert "unseen" in lock(root, "torch", UV_DEFAULT_INDEX=f"{address}pypi/").stdout
