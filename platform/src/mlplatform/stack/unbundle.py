"""Start from an archive of `make bundle`: verify it completely, then take packages and images from it.

    PYTHONPATH=platform/src python3 -m mlplatform.stack.unbundle BUNDLE    # in a checkout; `make up BUNDLE=` runs it

Standard library only, because the command line is installed from the archive. It is a tar of

    mlplatform-bundle.json    format, version, kind of processor, images with their ids, versions of Python
    wheels/<name>.whl         packages of the command line
    images.tar.gz             `docker save` of the images
    SHA256SUMS                checksums of the members above, as `sha256sum` prints them
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from mlplatform.errors import HostError, PlatformError
from mlplatform.stack import image_archive

FORMAT = 1
"""Raised when an older version could no longer read an archive."""

HEADER, WHEELS, IMAGES, SUMS = "mlplatform-bundle.json", "wheels/", "images.tar.gz", "SHA256SUMS"

FOLDER = Path(".venv") / "wheels"
"""Folder in which the Makefile lets pip find the packages."""

_NOTHING = "Nothing was changed"


@dataclass(frozen=True)
class Header:
    """Contents of an archive, and the hosts that it fits."""

    version: str
    machine: str
    pythons: list[str]
    images: dict[str, str]
    format: int = FORMAT

    def render(self) -> bytes:
        return json.dumps(asdict(self), indent=2).encode()


def use(root: Path, bundle: Path) -> Iterator[str]:
    """Verify an archive, and take from it what this host lacks; yield a line per step.

    Raises:
        HostError: it is damaged, or for another version, processor or Python. Nothing was changed then.
    """
    header = verify(bundle)
    _check_fit(root, bundle, header)
    yield f"The bundle {bundle} of version {header.version} is complete."
    (root / FOLDER).mkdir(parents=True, exist_ok=True)
    missing = [name for name, found in header.images.items() if _image_id(name) != found]
    with tarfile.open(bundle, "r:") as archive:
        for member, content in _files(archive):
            if member.name.startswith(WHEELS):
                (root / FOLDER / Path(member.name).name).write_bytes(content.read())
            elif member.name == IMAGES and missing:
                yield f"Loading {len(header.images)} images."
                chunks = iter(partial(content.read, image_archive.CHUNK_BYTES), b"")
                image_archive.load(chunks, "run the verb again")
    absent = [name for name in header.images if not _image_id(name)]
    if absent:
        raise HostError(f"Docker has no image {', '.join(absent)} after loading {bundle}: see its log.")


def verify(bundle: Path) -> Header:
    """Read an archive completely and compare it with its checksums.

    Raises:
        HostError: it is truncated, altered or no archive of `make bundle`.
    """
    try:
        found, texts = _read(bundle)
    except (OSError, tarfile.TarError) as error:
        raise HostError(f"The bundle {bundle} cannot be read ({error}): copy it again. {_NOTHING}.") from error
    if HEADER not in found:
        raise HostError(f"{bundle} is not an archive of `make bundle`: name one with BUNDLE=. {_NOTHING}.")
    if found.pop(SUMS, None) is None:
        raise HostError(f"The bundle {bundle} is truncated: copy it again. {_NOTHING}.")
    lines = texts[SUMS].decode(errors="replace").splitlines()
    expected = {name: checksum for checksum, _, name in (line.partition("  ") for line in lines)}
    if found != expected:
        wrong = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
        raise HostError(f"The bundle {bundle} was altered or damaged ({wrong[0]}): copy it again. {_NOTHING}.")
    return _parsed(bundle, texts[HEADER])


def _read(bundle: Path) -> tuple[dict[str, str], dict[str, bytes]]:
    """Return the checksum of each member, and the contents of those that describe the archive."""
    found: dict[str, str] = {}
    texts: dict[str, bytes] = {}
    with tarfile.open(bundle, "r:") as archive:
        for member, content in _files(archive):
            if not found and member.name != HEADER:
                break  # something else, perhaps large
            if member.name in found:
                raise tarfile.ReadError(f"{member.name} is in it twice")
            if member.name in (HEADER, SUMS):
                texts[member.name] = content.read()
                content.seek(0)
            found[member.name] = _checksum(content, member.size)
    return found, texts


def _parsed(bundle: Path, header: bytes) -> Header:
    values: dict[str, Any] = json.loads(header)
    if values.get("format") != FORMAT:
        raise HostError(
            f"The bundle {bundle} has format {values.get('format')}, this version reads {FORMAT}: check out the "
            f"version that wrote it, or write it again. {_NOTHING}."
        )
    return Header(**values)


def _check_fit(root: Path, bundle: Path, header: Header) -> None:
    version = tomllib.loads((root / "platform" / "pyproject.toml").read_text())["project"]["version"]
    here = ".".join(platform.python_version_tuple()[:2])
    if header.version != version:
        problem = f"version {header.version}, and this checkout is {version}: check out the same version"
    elif header.machine != platform.machine():
        problem = f"processors of kind {header.machine}, not {platform.machine()}: write it on such a host"
    elif here not in header.pythons:
        problem = f"Python {', '.join(header.pythons)}, and this host has {here}: install one of them as python3"
    elif not shutil.which("docker"):
        problem = "hosts with Docker: install Docker Engine 25 or later with its Compose plugin"
    else:
        return
    raise HostError(f"The bundle {bundle} is for {problem}. {_NOTHING}.")


def _files(archive: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
    for member in archive:
        content = archive.extractfile(member)
        if content:
            yield member, content


def _checksum(content: IO[bytes], size: int) -> str:
    hasher = hashlib.sha256()
    for chunk in iter(partial(content.read, image_archive.CHUNK_BYTES), b""):
        hasher.update(chunk)
        size -= len(chunk)
    if size:
        raise tarfile.ReadError("unexpected end of data")
    return hasher.hexdigest()


def _image_id(name: str) -> str:
    command = ["docker", "image", "inspect", "--format", "{{.Id}}", name]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    try:
        for line in use(Path.cwd(), Path(sys.argv[1]).expanduser()):
            print(line, flush=True)
    except PlatformError as problem:
        print(problem, file=sys.stderr)
        sys.exit(problem.exit_code)
