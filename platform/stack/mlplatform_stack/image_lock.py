"""Digests of the images that others build, in `compose/images.lock`, which Compose reads beside `.env`.

As a program, which `make lock` runs in the checkout: write that file; with `--upgrade`, replace its digests too.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from mlplatform.files import atomic

LOCK = Path("compose/images.lock")

_HEADER = """\
# Digests of the images that others build; `make lock` writes this file, and Compose uses it for builds and starts.
# unseen: its registry did not answer `make lock`, so the image is pinned by its tag only. What was read about each, and
# where, is in tests/official/facts.toml; `make lock ONLY=images` compares the images with it.
"""

# In the compose files and Dockerfiles: `name:tag${NAME_DIGEST:-}` and `name:tag${NAME_DIGEST}`.
_NAMED = re.compile(r"(\w[\w.-]*(?::\d+)?(?:/[\w.-]+)*:[\w.-]+)\$\{(\w+_DIGEST)(?::-)?\}")
_LOCKED = re.compile(r"^# seen: (\S+)\n(\w+_DIGEST)=(@sha256:[0-9a-f]{64})$", re.MULTILINE)
_DIGEST = re.compile("sha256:[0-9a-f]{64}")
_SECONDS = 60


class Image(NamedTuple):
    """An image with its tag, and the variable of its digest."""

    name: str
    variable: str


def images(root: Path) -> list[Image]:
    """Return the images that the compose files and Dockerfiles of a checkout name, in the order of their names."""
    files = [*(root / "compose").glob("*.yaml"), *(root / "images").glob("*/Dockerfile")]
    return sorted({Image(*pair) for file in files for pair in _NAMED.findall(file.read_text())})


def locked(root: Path) -> dict[Image, str]:
    """Return the digests of the lock file, in Docker's notation `@sha256:...`."""
    file = root / LOCK
    found = _LOCKED.findall(file.read_text()) if file.is_file() else []
    return {Image(name, variable): digest for name, variable, digest in found}


def lock(root: Path, *, upgrade: bool = False) -> list[Image]:
    """Write the digest of each image; return the images without a known digest.

    A tag that is already locked keeps its digest.

    Args:
        upgrade: replace digests by those that the tags have now, where the registries answer.
    """
    known, unseen, lines = locked(root), [], []
    for image in images(root):
        digest = known.get(image, "")
        if upgrade or not digest:
            digest = seen_digest(image.name) or digest
        if not digest:
            unseen.append(image)
        lines.append(f"# {'seen' if digest else 'unseen'}: {image.name}\n{image.variable}={digest}\n")
    atomic.write(root / LOCK, "\n".join([_HEADER, *lines]))
    return unseen


def seen_digest(image: str) -> str:
    """Return the digest that an image's registry has for its tag, as `@sha256:...`; empty if it does not answer.

    It is that of the list of all architectures, if there is one. Nothing is downloaded.
    """
    command = ["docker", "buildx", "imagetools", "inspect", "--format", "{{json .Manifest}}", image]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_SECONDS)
        digest = str(json.loads(result.stdout)["digest"])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
        return ""
    return f"@{digest}" if _DIGEST.fullmatch(digest) else ""


if __name__ == "__main__":
    for unseen in lock(Path(), upgrade="--upgrade" in sys.argv):
        print(f"unseen: {unseen.name} stays pinned by its tag only, because its registry did not answer")
