"""One archive with images and packages, from which `make up BUNDLE=` starts the stack on a host without network."""

from __future__ import annotations

import hashlib
import io
import platform
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO

from mlplatform.errors import HostError
from mlplatform.files import atomic, checksums
from mlplatform.settings.environment import shell_environment
from mlplatform.settings.stack import StackSettings
from mlplatform.stack import image_archive, images
from mlplatform.stack.image_archive import Output
from mlplatform.stack.unbundle import HEADER, IMAGES, SUMS, WHEELS, Header

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""Versions for whose command line an archive has the packages."""

_BLOCK = 512

_OURS = "mlplatform-"


def write(root: Path, target: Path) -> str:
    """Write the images that a start with this checkout's settings needs, and the command line's packages.

    Returns:
        SHA-256 of the archive, which shows that a copy is the same.

    Raises:
        HostError: an image or a package is missing and cannot be fetched, or the disk is full.
    """
    settings = StackSettings.load(root / ".env")
    images.pull_missing(root)
    names = {*map(images.tagged, images.chosen(root).values()), *_optional(settings.version)}
    header = Header(
        settings.version, platform.machine(), list(PYTHONS), {name: images.image_id(name) for name in sorted(names)}
    )
    try:
        with (
            tempfile.TemporaryDirectory(prefix="mlplatform-wheels-") as folder,
            atomic.new_file(target) as draft,
            draft.open("wb") as file,
        ):
            _download(root, Path(folder))
            writer = _Writer(file)
            writer.add(HEADER, io.BytesIO(header.render()))
            for wheel in sorted(Path(folder).iterdir()):
                with wheel.open("rb") as content:
                    writer.add(f"{WHEELS}{wheel.name}", content)
            writer.add_stream(IMAGES, lambda out: _save(header, out))
            writer.close()
    except OSError as error:
        raise HostError(
            f"{target} cannot be written ({error.strerror}): it takes about 5 GB, so name another place with TO=."
        ) from error
    return checksums.sha256(target)


def _optional(version: str) -> list[str]:
    """Images of ours that this host has built, for services that can be turned on later."""
    names = [f"{_OURS}{kind}:{version}" for kind in ("platform", "minio", "ray", "notebook", "proxy", "link")]
    return [name for name in names if images.is_present(name)]


def _download(root: Path, folder: Path) -> None:
    """Fetch the command line's packages for each version of Python."""
    requirements = root / "platform" / "requirements.txt"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--require-hashes"]
    for python in PYTHONS:
        only = ("--only-binary", ":all:", "--python-version", python)
        command = [*pip, *only, "--dest", str(folder), "--requirement", str(requirements)]
        if subprocess.run(command, env=shell_environment(), check=False).returncode:
            raise HostError(f"The packages for Python {python} could not be fetched; the reason is above.")


def _save(header: Header, out: Output) -> None:
    packed = _Packed(out)
    image_archive.save(header.images, packed)
    packed.close()


class _Writer:
    """A tar whose members can be streams of unknown length, and whose last member has the checksums of all others."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._sums: dict[str, str] = {}

    def add(self, name: str, content: IO[bytes]) -> None:
        self.add_stream(name, lambda out: _copy(content, out))

    def add_stream(self, name: str, write: Callable[[Output], None]) -> None:
        """Add what a function writes. The member's size goes into its header afterwards."""
        start = self._file.tell()
        self._file.write(bytes(_BLOCK))
        counter = _Counter(self._file)
        write(counter)
        self._file.write(bytes(-counter.size % _BLOCK))
        end = self._file.tell()
        info = tarfile.TarInfo(name)
        info.size, info.mode = counter.size, 0o644
        # GNU's format has sizes above 8 GB in the same block, but names of more than 100 characters in others.
        block = info.tobuf(tarfile.GNU_FORMAT)
        if len(block) != _BLOCK:
            raise HostError(f"The name {name} is too long for the archive.")
        self._file.seek(start)
        self._file.write(block)
        self._file.seek(end)
        self._sums[name] = counter.hasher.hexdigest()

    def close(self) -> None:
        self.add(SUMS, io.BytesIO(checksums.render(self._sums).encode()))
        self._file.write(bytes(2 * _BLOCK))


class _Counter:
    """Counts and hashes what passes to a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size, self.hasher = 0, hashlib.sha256()

    def write(self, data: bytes, /) -> int:
        self.size += len(data)
        self.hasher.update(data)
        return self._file.write(data)


class _Packed:
    """Compresses what passes to an output, in the format of gzip."""

    def __init__(self, out: Output) -> None:
        self._out = out
        # Level 1: a third of the time of the default, for a tenth more bytes.
        self._packer = zlib.compressobj(1, wbits=31)

    def write(self, data: bytes, /) -> None:
        self._out.write(self._packer.compress(data))

    def close(self) -> None:
        self._out.write(self._packer.flush())


def _copy(content: IO[bytes], out: Output) -> None:
    while chunk := content.read(image_archive.CHUNK_BYTES):
        out.write(chunk)
