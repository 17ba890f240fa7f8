"""Start from an archive of `make bundle`: verify it completely, then take images and packages from it.

    PYTHONPATH=platform/src python3 -m mlplatform.stack.unbundle BUNDLE    # in a checkout; `make up BUNDLE=` runs it

Standard library only, because the command line is installed from the archive. It is what `docker save` writes, packed
by gzip, whose checksum shows damage. One of its images, named after version and processor, has the packages.
"""

from __future__ import annotations

import gzip
import json
import platform
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zlib
from collections.abc import Iterator
from pathlib import Path

from mlplatform.errors import HostError, PlatformError

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""Versions for whose command line an archive has the packages."""

WHEELS = "wheels"
"""Folder of the packages, in their image."""

FOLDER = Path(".venv") / WHEELS
"""Folder in which the Makefile lets pip find the packages."""

_LOADED = FOLDER / ".loaded"
"""Size and time of the archive that was loaded last."""

_NOTHING = "Nothing was changed"


def packages_image(version: str) -> str:
    """Return the name of the image with the packages for hosts like this one."""
    return f"mlplatform-bundle:{version}-{platform.machine()}"


def use(root: Path, bundle: Path) -> Iterator[str]:
    """Verify an archive, and take from it what this host lacks; yield a line per step.

    Raises:
        HostError: it is damaged, or for another version, processor or Python. Nothing was changed then.
    """
    names = verify(bundle)
    packages = _check_fit(root, bundle, names)
    yield f"The bundle {bundle} is complete."
    status, loaded = bundle.stat(), root / _LOADED
    mark = f"{status.st_size} {status.st_mtime_ns}"
    images = [name for name in names if name != packages]
    known = set(_docker("image", "ls", "--format", "{{.Repository}}:{{.Tag}}").split())
    if loaded.exists() and loaded.read_text() == mark and known.issuperset(images):
        return
    yield f"Loading {len(images)} images."
    _docker("load", "--input", str(bundle))
    _take_packages(packages, root / FOLDER)
    loaded.write_text(mark)


def verify(bundle: Path) -> list[str]:
    """Read an archive completely, which compares it with its checksum; return the names of its images.

    Raises:
        HostError: it is truncated, altered or no archive of `make bundle`.
    """
    names: list[str] = []
    try:
        with gzip.open(bundle) as unpacked:
            with tarfile.open(fileobj=unpacked, mode="r|") as archive:
                for member in archive:
                    if member.name == "manifest.json" and (content := archive.extractfile(member)):
                        names = [name for image in json.load(content) for name in image["RepoTags"] or []]
            while unpacked.read(1 << 20):
                pass
    except (OSError, EOFError, zlib.error, tarfile.TarError, ValueError) as error:
        raise HostError(f"The bundle {bundle} cannot be read ({error}): copy it again. {_NOTHING}.") from error
    return names


def _check_fit(root: Path, bundle: Path, names: list[str]) -> str:
    """Return the image with the packages, if an archive is for this checkout and host."""
    wanted = packages_image(tomllib.loads((root / "platform" / "pyproject.toml").read_text())["project"]["version"])
    here = ".".join(platform.python_version_tuple()[:2])
    found = next((name for name in names if name.startswith("mlplatform-bundle:")), "")
    if not found:
        raise HostError(f"{bundle} is not an archive of `make bundle`: name one with BUNDLE=. {_NOTHING}.")
    if found != wanted:
        problem = f"version and processor {found.partition(':')[2]}, not {wanted.partition(':')[2]}: write it for these"
    elif here not in PYTHONS:
        problem = f"Python {', '.join(PYTHONS)}, and this host has {here}: install one of them as python3"
    elif not shutil.which("docker"):
        problem = "hosts with Docker: install Docker Engine 25 or later with its Compose plugin"
    else:
        return found
    raise HostError(f"The bundle {bundle} is for {problem}. {_NOTHING}.")


def _take_packages(image: str, folder: Path) -> None:
    """Copy the packages out of their image, and remove it."""
    folder.mkdir(parents=True, exist_ok=True)
    container = _docker("create", image, "none")
    try:
        _docker("cp", f"{container}:/{WHEELS}/.", str(folder))
    finally:
        _docker("rm", container)
    _docker("image", "rm", image)


def _docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise HostError(f"`docker {arguments[0]}` failed ({done.stderr.strip()}): correct that and run the verb again.")
    return done.stdout.strip()


if __name__ == "__main__":
    try:
        for line in use(Path.cwd(), Path(sys.argv[1]).expanduser()):
            print(line, flush=True)
    except PlatformError as problem:
        print(problem, file=sys.stderr)
        sys.exit(problem.exit_code)
