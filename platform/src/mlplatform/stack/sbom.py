"""Contents of the images that we build, as one CycloneDX file each in `sbom/`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

from mlplatform.errors import HostError
from mlplatform.settings.environment import environment
from mlplatform.settings.stack import StackSettings
from mlplatform.stack import images
from mlplatform.stack.services import SERVICES

FOLDER = "sbom"

_GO = {"minio", "proxy"}
"""Images with a program that we compile from Go modules."""


def write(root: Path, only: str = "") -> Iterator[Path]:
    """Describe each image that this host has; the images stay as they are.

    Args:
        root: folder of the checkout.
        only: folder below images/ of the one image to describe; empty for all.

    Yields:
        The files, each once it is written.

    Raises:
        HostError: no image has been built, or one cannot be described.
    """
    settings = StackSettings.load(root / ".env")
    built = sorted({service.built for service in SERVICES} - {""})
    found = {name: f"mlplatform-{name}:{settings.version}" for name in built if only in ("", name)}
    present = {name: image for name, image in found.items() if images.is_present(image)}
    if not present:
        raise HostError(f"No image was found: run `make build`. ONLY= accepts {', '.join(built)}.")
    for name, image in present.items():
        language = "go" if name in _GO else "python"
        own = {"IMAGE": image, "NAME": f"mlplatform-{name}", "VERSION": settings.version, "LANGUAGE": language}
        yield _describe(root, name, {**images.build_arguments(root), **own})


def _describe(root: Path, name: str, variables: dict[str, str]) -> Path:
    command = ["docker", "build", "--quiet", "--file", "images/sbom/Dockerfile", "--output", FOLDER]
    for variable, value in variables.items():
        command += ["--build-arg", f"{variable}={value}"]
    result = subprocess.run([*command, "."], cwd=root, env=environment(), capture_output=True, text=True, check=False)
    if result.returncode:
        raise HostError(f"The image {variables['IMAGE']} cannot be described: {result.stderr.strip()[-2000:]}")
    return root / FOLDER / f"mlplatform-{name}.cdx.json"
