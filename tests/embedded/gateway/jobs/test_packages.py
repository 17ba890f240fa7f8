"""Packages as Ray's own client makes and names them: each is accepted, whenever it is uploaded again."""

from __future__ import annotations

import asyncio
import os
import tarfile
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from ray._private.runtime_env.packaging import create_package, get_uri_for_directory, get_uri_for_package

from mlplatform.client import package
from mlplatform_gateway.errors import PackageExistsError
from mlplatform_gateway.packages.store import Packages, is_named_by_content


@pytest.fixture
def packages(tmp_path: Path) -> Packages:
    return Packages(str(tmp_path / "store"), 1 << 20)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    for name in ("train.py", "lib/__init__.py", "data/photo.png", "cache/only.bin"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / ".gitignore").write_text("data/*\n")
    (folder / "empty").mkdir()
    (folder / "linked.py").symlink_to("train.py")
    (folder / "broken").symlink_to("nowhere")
    return folder


def put(packages: Packages, name: str, content: bytes) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield content

    asyncio.run(packages.put(name, parts()))


def upload_folder(packages: Packages, folder: Path, excludes: list[str], include_parent_dir: bool) -> str:
    """Make and name a package as `DashboardClient._upload_package_if_needed` does, and upload it."""
    uri = get_uri_for_directory(str(folder), include_gitignore=True, excludes=excludes)
    made = folder.parent / "made.zip"
    create_package(str(folder), made, include_gitignore=True, include_parent_dir=include_parent_dir, excludes=excludes)
    put(packages, uri.removeprefix("gcs://"), made.read_bytes())
    return uri


@pytest.mark.parametrize("excludes", [[], ["cache/only.bin"]])
@pytest.mark.parametrize("include_parent_dir", [False, True])
def test_folder_of_rays_client_is_accepted_again(
    packages: Packages, folder: Path, excludes: list[str], include_parent_dir: bool
) -> None:
    first = upload_folder(packages, folder, excludes, include_parent_dir)
    (folder / "data/photo.png").unlink()  # ignored, so the name stays, but `data` is packed from now on
    (folder / "train.py").chmod(0o755)
    os.utime(folder / "lib/__init__.py", (1_600_000_000, 1_600_000_000))
    assert upload_folder(packages, folder, excludes, include_parent_dir) == first
    assert is_named_by_content(first.removeprefix("gcs://"))
    (folder / "train.py").write_text("changed")
    assert upload_folder(packages, folder, excludes, include_parent_dir) != first


def test_archive_is_named_by_its_content(packages: Packages, folder: Path) -> None:
    archives = [folder.parent / name for name in ("made.zip", "made.tar.gz", "made.tgz", "made.tar.xz")]
    with zipfile.ZipFile(archives[0], "w") as archive:
        archive.write(folder / "train.py", "train.py")
    for path, mode in zip(archives[1:], ("w:gz", "w:gz", "w:xz"), strict=True):
        with tarfile.open(path, mode) as tar:
            tar.add(folder, "job")
    for path in archives:
        name = get_uri_for_package(path).removeprefix("gcs://")
        assert is_named_by_content(name)
        put(packages, name, path.read_bytes())
        put(packages, name, path.read_bytes())


def test_wheel_with_same_version_and_other_content_is_rejected(packages: Packages, folder: Path) -> None:
    wheel = folder.parent / "pkg-0.1-py3-none-any.whl"
    for content in ("one", "two"):
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("pkg/__init__.py", content)
        name = get_uri_for_package(wheel).removeprefix("gcs://")
        assert name == wheel.name
        assert not is_named_by_content(name)
        if content == "one":
            put(packages, name, wheel.read_bytes())
    with pytest.raises(PackageExistsError, match="change its version"):
        put(packages, name, wheel.read_bytes())


def test_folder_of_our_client_is_accepted_again(packages: Packages, folder: Path) -> None:
    put(packages, *package.build(folder))
    put(packages, *package.build(folder))
