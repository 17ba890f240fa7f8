"""Reliance of services of the compose files on the images of others, compared with facts.toml."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from facts import Facts

Service = Mapping[str, Any]
"""A service as `docker compose config --format json` prints it."""

OF_EVERY_PROGRAM = re.compile(r"(HTTPS?|NO)_PROXY|SSL_CERT_FILE|TZ", re.IGNORECASE)
"""Variables that need no fact: the C library and Go read them, or nobody does."""


def official(config: Mapping[str, Any]) -> dict[str, Service]:
    """Return the services whose images others build."""
    return {
        name: service for name, service in config["services"].items() if not service["image"].startswith("mlplatform-")
    }


def faults(service: Service, facts: Facts, owned: set[str]) -> Iterator[str]:
    """Yield what a service relies on and the facts do not grant.

    Args:
        service: the definition.
        facts: those of its image.
        owned: volumes that the platform gives to the user of the service before it starts.
    """
    image = f"{facts['image']}:{facts['tag']}"
    if service["image"].partition("@")[0] != image:
        yield f"its image is {service['image']}, the facts are of {image}: read the sources of the new tag"
    yield from _user(service, facts)
    yield from _programs(service, facts)
    yield from _settings(service, facts)
    yield from _folders(service, facts, owned)
    yield from _rights(service, facts)


def reads(text: str, prefixes: tuple[str, ...]) -> set[str]:
    """Return the names of metrics with one of some prefixes in rules and dashboards."""
    return set(re.findall(rf"\b(?:{'|'.join(prefixes)})\w+", text))


def _user(service: Service, facts: Facts) -> Iterator[str]:
    user = service.get("user", facts["user"])
    if user != facts["user"] and "any_user" not in facts:
        yield f"it runs as {user}, the image is made for {facts['user'] or 'root'} only"
    group = facts.get("group")
    if group and user.partition(":")[2] != group:
        yield f"it runs as {user}, and the image opens its folders to group {group} only"


def _programs(service: Service, facts: Facts) -> Iterator[str]:
    needed = set(_first_words(service.get("healthcheck", {}).get("test", [])))
    entrypoint = service.get("entrypoint") or []
    needed.update(entrypoint[:1])
    for program in sorted(needed - set(facts["programs"])):
        yield f"it runs {program}, which the image does not have"
    if not entrypoint and not facts["entrypoint"]:
        yield "neither it nor its image has an entry point"


def _first_words(test: list[str]) -> Iterator[str]:
    """Yield the programs of a health check; one for a shell needs that, and each program of its pipeline."""
    kind, *arguments = test or ["NONE"]
    if kind == "CMD":
        yield arguments[0]
    elif kind == "CMD-SHELL":
        yield "sh"
        for command in re.split(r"\|\|?|&&|;", arguments[0]):
            yield shlex.split(command)[0]


def _settings(service: Service, facts: Facts) -> Iterator[str]:
    flags = {word[2:].partition("=")[0] for word in service.get("command") or [] if word.startswith("--")}
    for flag in sorted(flags - set(facts.get("flags", []))):
        yield f"it sets --{flag}, which the program does not have"
    variables = {name for name in service.get("environment") or {} if not OF_EVERY_PROGRAM.fullmatch(name)}
    for name in sorted(variables - set(facts.get("variables", []))):
        yield f"it sets {name}, which the program does not read"


def _folders(service: Service, facts: Facts, owned: set[str]) -> Iterator[str]:
    modes = {folder["path"]: folder["mode"] for folder in facts["folders"]}
    mounts = {mount["target"]: mount for mount in service.get("volumes") or []}
    temporary = {entry.partition(":")[0] for entry in service.get("tmpfs") or []}
    for path in sorted(set(facts["volumes"]) - set(mounts)):
        yield f"nothing is mounted at {path}, so that its data is in a volume without a name"
    for path in sorted(set(modes) - set(mounts) - temporary if service.get("read_only") else ()):
        yield f"its root file system is read-only, and {path}, which the program writes, is not mounted"
    for path in sorted(temporary if "user" in service else ()):
        # A tmpfs has the mode of the image's folder, and root owns it.
        if not int(modes.get(path, "0"), 8) & 0o002:
            yield f"the tmpfs {path} has the mode {modes.get(path, 'of no fact')}, so that its user cannot write there"
    for mount in mounts.values():
        yield from _mount(mount, set(modes), owned if "user" in service else {mount["source"]})


def _mount(mount: Mapping[str, Any], written: set[str], owned: set[str]) -> Iterator[str]:
    path, writable = mount["target"], not mount.get("read_only")
    if mount["type"] == "bind" and writable:
        yield f"{path} is a folder of the host and writable"
    if mount["type"] == "volume" and writable:
        if path not in written:
            yield f"the volume at {path} is writable, and the program writes nothing there"
        if mount["source"] not in owned:
            yield f"nobody gives the volume {mount['source']} to its user"


def _rights(service: Service, facts: Facts) -> Iterator[str]:
    needed, added = set(facts.get("capabilities", [])), set(service.get("cap_add") or [])
    if "ALL" not in (service.get("cap_drop") or []):
        yield "it keeps capabilities that its program does not need"
    if added != needed:
        yield f"it adds the capabilities {sorted(added)}, its program needs {sorted(needed)}"
