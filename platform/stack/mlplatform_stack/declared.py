"""Services as the compose files declare them: the only source of what a service is (compose/README.md).

Read without Compose, because `docker compose config --format json` leaves out `x-mlplatform`, and `make env` needs no
Docker. The files are those that `compose.yaml` lists for the values of `.env`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from dotenv import dotenv_values

from mlplatform.settings.environment import environment
from mlplatform_stack.settings import StackSettings

Service = Mapping[str, Any]
"""A service with what it inherits. Variables are not replaced."""

_VARIABLE = re.compile(r"\$\{(\w+)(?:(:?)([-+])([^${}]*))?\}")

_REPLACED = ("command", "entrypoint", "healthcheck")
"""Lists and mappings that replace those before them; files and heirs add to all others."""


def values(root: Path) -> dict[str, str]:
    """Return the variables with which Compose reads the files: of the environment, of `.env`, and the defaults."""
    written = {name: value or "" for name, value in dotenv_values(root / ".env").items()}
    return {**StackSettings.defaults(), **written, **environment()}


def resolve(text: str, known: Mapping[str, str]) -> str:
    """Return a text with its variables replaced, as Compose replaces them; `${A:-${B}}` is not supported."""

    def value(found: re.Match[str]) -> str:
        name, colon, operator, alternative = found.groups()
        present = bool(known.get(name)) if colon else name in known
        if operator == "+":
            return str(alternative) if present else ""
        return known[name] if present else alternative or ""

    return _VARIABLE.sub(value, text)


def services(root: Path, known: Mapping[str, str] | None = None, *, generated: bool = True) -> dict[str, Service]:
    """Return every service by its name, whether or not a profile starts it.

    Args:
        known: variables that choose the files; by default those with which Compose reads them.
        generated: also read the generated files that exist.
    """
    known, found = values(root) if known is None else known, dict[str, Service]()
    for file in _files(root / "compose", known):
        if file.is_file() and (generated or ".generated." not in file.name):
            for name in of_file(file):
                service = inherited(file, name, known)
                found[name] = _merged(found[name], service) if name in found else service
    return found


def of_file(file: Path) -> dict[str, Service]:
    """Return the services of one file, without what they extend."""
    return dict(_content(file).get("services") or {})


def inherited(file: Path, name: str, known: Mapping[str, str]) -> Service:
    """Return a service of one file, with what it extends."""
    service: Service = _content(file)["services"][name]
    if not (parent := service.get("extends")):
        return service
    other = file.parent / resolve(parent.get("file", file.name), known)
    return _merged(inherited(other, parent["service"], known), service)


def facts(service: Service) -> dict[str, Any]:
    """Return the `x-mlplatform` of a service."""
    return dict(service.get("x-mlplatform") or {})


def secrets(root: Path) -> list[str]:
    """Return the files of `secrets/` that the shipped compose files mount, whatever the settings."""
    files = (file for file in sorted((root / "compose").glob("*.yaml")) if ".generated." not in file.name)
    mounted = (entry["file"] for file in files for entry in (_content(file).get("secrets") or {}).values())
    return list(dict.fromkeys(Path(path).name for path in mounted))


def _files(folder: Path, known: Mapping[str, str]) -> Iterator[Path]:
    for entry in _content(folder / "compose.yaml")["include"]:
        paths = entry["path"] if isinstance(entry, dict) else entry
        for path in [paths] if isinstance(paths, str) else paths:
            yield folder / resolve(path, known)


def _merged(one: Service, other: Service) -> Service:
    merged = {**one, **other}
    for key in one.keys() & other.keys() - set(_REPLACED):
        before, after = one[key], other[key]
        if isinstance(before, dict) and isinstance(after, dict):
            merged[key] = {**before, **after}
        elif isinstance(before, list) and isinstance(after, list):
            merged[key] = [*before, *after]
    return merged


def _content(file: Path) -> dict[str, Any]:
    return _parsed(file.read_text())


@lru_cache(maxsize=64)
def _parsed(text: str) -> dict[str, Any]:
    # Cached because each service of a file reads the one that it extends from its file.
    content: dict[str, Any] = yaml.load(text, Loader=yaml.CSafeLoader)
    return content
