"""Digests of images: written only if a registry has answered with them, and used by every file that names an image."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from mlplatform_stack import image_lock
from mlplatform_stack.image_lock import Image

CHECKOUT = Path(__file__).parents[3]
POSTGRES = next(image for image in image_lock.images(CHECKOUT) if image.variable == "POSTGRES_DIGEST")
FIRST, SECOND = (f"@sha256:{digit * 64}" for digit in "12")

# As `docker buildx imagetools inspect`, for the one image whose registry answers; a stack test asks a real registry.
DOCKER = """#!/bin/sh
case "$*" in *" {image}") echo '{{"mediaType": "application/vnd.oci.image.index.v1+json", "digest": "{digest}"}}' ;;
*) echo "ERROR: dial tcp: no such host" >&2; exit 1 ;; esac
"""


@pytest.fixture
def root(root: Path) -> Path:
    """A checkout without a lock file."""
    shutil.copytree(CHECKOUT / "images", root / "images")
    (root / image_lock.LOCK).unlink()
    return root


@pytest.fixture
def answer(program: Callable[[str, str], Path]) -> Callable[[str, str], Path]:
    """Lets the registry of one image answer."""
    return lambda image, digest: program("docker", DOCKER.format(image=image, digest=digest.removeprefix("@")))


def test_only_seen_digests_are_written(root: Path, answer: Callable[[str, str], Path]) -> None:
    answer(POSTGRES.name, FIRST)
    program = [sys.executable, "-m", "mlplatform_stack.image_lock"]
    printed = subprocess.run(program, cwd=root, capture_output=True, text=True, check=True).stdout
    assert image_lock.locked(root) == {POSTGRES: FIRST}
    unseen = set(image_lock.images(root)) - {POSTGRES}
    assert {line.split()[1] for line in printed.splitlines()} == {image.name for image in unseen}
    text = (root / image_lock.LOCK).read_text()
    assert f"# seen: {POSTGRES.name}\nPOSTGRES_DIGEST={FIRST}\n" in text
    assert all(f"# unseen: {image.name}\n{image.variable}=\n" in text for image in unseen)


def test_answer_without_digest_is_not_written(root: Path, answer: Callable[[str, str], Path]) -> None:
    answer(POSTGRES.name, "latest")
    image_lock.lock(root)
    assert image_lock.locked(root) == {}


def test_locked_digest_changes_with_upgrade_only(root: Path, answer: Callable[[str, str], Path]) -> None:
    answer(POSTGRES.name, FIRST)
    image_lock.lock(root)
    answer(POSTGRES.name, SECOND)
    image_lock.lock(root)
    assert image_lock.locked(root) == {POSTGRES: FIRST}
    image_lock.lock(root, upgrade=True)
    assert image_lock.locked(root) == {POSTGRES: SECOND}
    answer("nothing", FIRST)
    assert POSTGRES not in image_lock.lock(root, upgrade=True), "a digest that was seen is lost with the network"
    assert image_lock.locked(root) == {POSTGRES: SECOND}


def test_digest_of_another_tag_is_dropped(root: Path, answer: Callable[[str, str], Path]) -> None:
    answer(POSTGRES.name, FIRST)
    image_lock.lock(root)
    storage = root / "compose/storage.yaml"
    storage.write_text(storage.read_text().replace(POSTGRES.name, "postgres:18.1-trixie"))
    assert Image("postgres:18.1-trixie", "POSTGRES_DIGEST") in image_lock.lock(root)
    assert image_lock.locked(root) == {}


def test_shipped_lock_lists_images_of_checkout() -> None:
    text = (CHECKOUT / image_lock.LOCK).read_text()
    listed = re.findall(r"^# (?:seen|unseen): (\S+)\n(\w+)=(@sha256:[0-9a-f]{64})?$", text, re.MULTILINE)
    assert [Image(name, variable) for name, variable, _ in listed] == image_lock.images(CHECKOUT), "run `make lock`"


def test_every_image_of_others_has_digest() -> None:
    images = image_lock.images(CHECKOUT)
    assert len({image.variable for image in images}) == len(images)
    files = [*(CHECKOUT / "compose").glob("*.yaml"), *(CHECKOUT / "images").glob("*/Dockerfile")]
    named = [line for file in files for line in re.findall(r"^(?: +image:|FROM) (.+)", file.read_text(), re.MULTILINE)]
    foreign = [line for line in named if re.search(r"\w:\w", line) and not re.search(r"mlplatform-\w+:", line)]
    assert len(foreign) >= 10
    assert not [line for line in foreign if not any(f"{image.name}${{{image.variable}" in line for image in images)]


def test_files_with_digests_read_lock() -> None:
    text = (CHECKOUT / "compose/compose.yaml").read_text().replace("${S3_ENDPOINT_URL:+.external}", "")
    entries = [entry for entry in yaml.safe_load(text)["include"] if isinstance(entry, dict)]
    with_lock = [
        path
        for entry in entries
        if entry.get("env_file") == "images.lock"
        for path in ([entry["path"]] if isinstance(entry["path"], str) else entry["path"])
    ]
    for path in (CHECKOUT / "compose").glob("*.yaml"):
        if "_DIGEST:-" in path.read_text():
            # Files that others extend are read with the variables of those.
            name = re.sub(r"^accelerator\.\w+\.yaml", "stack.generated.yaml", path.name)
            assert with_lock.count(name) == 1, name
