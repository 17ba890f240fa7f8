"""One archive with images and packages, from which `make up BUNDLE=` starts the stack on a host without network.

`platform/unbundle.sh` takes both from it.
"""

from __future__ import annotations

import gzip
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mlplatform.errors import HostError
from mlplatform.files import atomic, checksums
from mlplatform.settings.environment import shell_environment
from mlplatform_stack import images
from mlplatform_stack.settings import StackSettings

_PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""Versions of Python for which an archive has the command line's packages."""

_WHEELS = "wheels"
"""Folder of the packages, in their image."""


def write(root: Path, target: Path) -> str:
    """Write the images that a start with this checkout's settings needs, and one with the command line's packages.

    Returns:
        SHA-256 of the archive, which shows that a copy is the same.

    Raises:
        HostError: an image or a package is missing and cannot be fetched, or the disk is full.
    """
    settings = StackSettings.load(root / ".env")
    images.pull_missing(root)
    started = (images.tagged(service["image"]) for service in images.configured(root).values())
    # Also those of services that can be turned on later.
    names = {*started, *images.built(settings.mlplatform_version)}
    packages = f"mlplatform-bundle:{settings.mlplatform_version}-{platform.machine()}"
    with tempfile.TemporaryDirectory(prefix="mlplatform-wheels-") as folder:
        _download(root, Path(folder) / _WHEELS)
        _build(packages, Path(folder))
    try:
        # Level 1: a third of the time of the default, for a tenth more bytes.
        with atomic.new_file(target) as draft, gzip.open(draft, "wb", compresslevel=1) as packed:
            _save(sorted({*names, packages}), packed)
    except OSError as error:
        raise HostError(
            f"{target} cannot be written ({error.strerror}): it takes about 5 GB, so name another place with TO=."
        ) from error
    finally:
        subprocess.run(["docker", "image", "rm", "--force", packages], stdout=subprocess.DEVNULL, check=False)
    return checksums.sha256(target)


def _save(names: Sequence[str], packed: gzip.GzipFile) -> None:
    with subprocess.Popen(["docker", "save", *names], stdout=subprocess.PIPE) as process:
        if process.stdout:
            shutil.copyfileobj(process.stdout, packed, 1 << 20)
    if process.returncode:
        raise HostError(f"`docker save` exited with {process.returncode}; the reason is above.")


def _download(root: Path, folder: Path) -> None:
    """Fetch the command line's packages for each version of Python."""
    requirements = root / "platform" / "requirements.txt"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--require-hashes"]
    for python in _PYTHONS:
        only = ("--only-binary", ":all:", "--python-version", python)
        command = [*pip, *only, "--dest", str(folder), "--requirement", str(requirements)]
        if subprocess.run(command, env=shell_environment(), check=False).returncode:
            raise HostError(f"The packages for Python {python} could not be fetched; the reason is above.")


def _build(image: str, folder: Path) -> None:
    """Build an image that contains only the packages in a folder."""
    (folder / "Dockerfile").write_text(f"FROM scratch\nCOPY {_WHEELS} /{_WHEELS}\n")
    if subprocess.run(["docker", "build", "--quiet", "--tag", image, str(folder)], check=False).returncode:
        raise HostError("The packages could not be added to the bundle; the reason is above.")
