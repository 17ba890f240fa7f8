"""Pull the images of others and compare them with facts.toml: `make lock ONLY=images`. Standard library only.

    compare.py [--pull]   without it, the images are those that this host has

Prints one line per difference. Which variables a program reads cannot be seen in an image: for those, there are only
the sources that the facts name.
"""

from __future__ import annotations

import json
import posixpath
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from typing import Any

import facts

LINKS_AT_MOST = 8
PROBE_SECONDS = 60


def docker(*arguments: str) -> str:
    """Return what a command of Docker prints.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True).stdout


class Files:
    """Files of an image by their path, without starting it."""

    def __init__(self, image: str) -> None:
        container = docker("create", image).strip()
        try:
            with (
                subprocess.Popen(["docker", "export", container], stdout=subprocess.PIPE) as export,
                tarfile.open(fileobj=export.stdout, mode="r|") as archive,
            ):
                self._found = {"/" + entry.name.strip("/"): entry for entry in archive}
        finally:
            docker("rm", "--force", "--volumes", container)

    def at(self, path: str) -> tarfile.TarInfo | None:
        """Return the file at a path, through links of its name and of its folders; None if there is none."""
        for _ in range(LINKS_AT_MOST):
            folder, name = posixpath.split(posixpath.normpath(path))
            for parent in _parents(folder):
                entry = self._found.get(parent)
                if entry and entry.issym():
                    path = posixpath.join(posixpath.dirname(parent), entry.linkname, path[len(parent) :].lstrip("/"))
                    break
            else:
                found = self._found.get(posixpath.join(folder, name))
                if not found or not found.issym():
                    return found
                path = posixpath.join(folder, found.linkname)
        return None


def _parents(folder: str) -> Iterator[str]:
    while folder != "/":
        yield folder
        folder = posixpath.dirname(folder)


def differences(image: str, expected: facts.Facts) -> Iterator[str]:
    """Yield how an image that this host has differs from its facts.

    Raises:
        subprocess.CalledProcessError: the host does not have it.
    """
    (seen,) = json.loads(docker("image", "inspect", image))
    yield from _configuration(seen["Config"], expected)
    if seen["Architecture"] not in expected["architectures"]:
        yield f"its architecture is {seen['Architecture']}, not one of {expected['architectures']}"
    files = Files(image)
    path = dict(variable.split("=", 1) for variable in seen["Config"]["Env"])["PATH"].split(":")
    for word, wanted in (("programs", True), ("absent", False)):
        for program in expected[word]:
            if any(files.at(f"{folder}/{program}") for folder in path) is not wanted:
                yield f"it has {'no ' if wanted else ''}{program} in PATH"
    for folder in expected["folders"]:
        entry = files.at(folder["path"])
        here = f"{entry.uid}:{entry.gid} {entry.mode & 0o7777:o}" if entry else "missing"
        if here != f"{folder['owner']} {folder['mode']}":
            yield f"{folder['path']} is {here}, not {folder['owner']} {folder['mode']}"
    if "probe" in expected:
        yield from _flags(image, expected)


def _configuration(config: dict[str, Any], expected: facts.Facts) -> Iterator[str]:
    pairs = {
        "user": (config.get("User", ""), expected["user"]),
        "entry point": (config.get("Entrypoint") or [], expected["entrypoint"]),
        "volumes": (sorted(config.get("Volumes") or {}), sorted(expected["volumes"])),
    }
    for name, (seen, fact) in pairs.items():
        if seen != fact:
            yield f"{name}: {seen}, not {fact}"


def _flags(image: str, expected: facts.Facts) -> Iterator[str]:
    program, *arguments = expected["probe"]
    run = ("docker", "run", "--rm", "--network=none", "--user=65534", f"--entrypoint={program}", image, *arguments)
    printed = subprocess.run(run, capture_output=True, text=True, check=False, timeout=PROBE_SECONDS)
    words = (printed.stdout + printed.stderr).replace("-", "_").split()
    for flag in expected["flags"]:
        name = flag.replace("-", "_")
        if not any(word.lstrip("_").partition("=")[0] == name for word in words):
            yield f"its program has no flag --{flag}"


def report(image: str, expected: facts.Facts, pull: bool) -> list[str] | None:
    """Return the differences of an image, or None if it could not be compared."""
    try:
        if pull:
            docker("pull", "--quiet", image)
        found = list(differences(image, expected))
    except subprocess.CalledProcessError as error:
        reason = (error.stderr or "no reason given").strip().splitlines()[-1]
        print(f"{image}: not compared ({reason})", flush=True)
        return None
    print("\n".join(f"{image}: {line}" for line in found or ["as in tests/official/facts.toml"]), flush=True)
    return found


def main() -> int:
    images, _ = facts.load()
    pull = "--pull" in sys.argv[1:]
    names = {f"{expected['image']}:{expected['tag']}": expected for expected in images.values()}
    compared = [found for image, expected in names.items() if (found := report(image, expected, pull)) is not None]
    if not compared:
        print("No image could be compared: run this where their registries answer.", file=sys.stderr)
    # An image whose registry does not answer keeps its digest, or has none; one that differs must not get one.
    return not compared or any(compared)


if __name__ == "__main__":
    sys.exit(main())
