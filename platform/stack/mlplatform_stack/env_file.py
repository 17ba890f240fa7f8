"""Single settings in `.env`: their lines, changes of them alone, and variables of a shell that would override them."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from io import StringIO
from pathlib import Path

from dotenv import dotenv_values
from dotenv.parser import parse_stream

from mlplatform.files import atomic
from mlplatform.settings.environment import leave_out, set_environment
from mlplatform_stack import proxies
from mlplatform_stack.settings import StackSettings

_OTHERS = r"COMPOSE_\w+|DOCKER_BUILDKIT|DOCKER_DEFAULT_PLATFORM"
"""Compose's variables; the others choose the builder and the platform of images, for which the stack has no choice."""


def lines_of(text: str, names: Container[str]) -> str:
    """Return the lines of some settings, unchanged: Compose has rules of its own for quotes, `$` and comments."""
    return "".join(line.original.string for line in parse_stream(StringIO(text)) if line.key in names)


def defaults_of_empty(text: str) -> dict[str, str]:
    """Return the defaults of settings that are empty, which Compose would take as they are."""
    values = dotenv_values(stream=StringIO(text), interpolate=False)
    return {name: value for name, value in StackSettings.defaults().items() if values.get(name) == ""}


def changed(text: str, values: Mapping[str, str]) -> str:
    """Return the text with other values of some settings; those that it lacks are added."""
    for name, value in values.items():
        line = f"{name}={value}"
        text, count = re.subn(rf"^{name}=.*$", line.replace("\\", r"\\"), text, flags=re.M)
        if not count:
            text = f"{text.rstrip()}\n{line}\n"
    return text


def change(file: Path, values: Mapping[str, str]) -> bool:
    """Write other values of some settings; return whether the file has changed."""
    before = file.read_text()
    after = changed(before, values)
    if after != before:
        atomic.write(file, after)
    return after != before


def use_own_settings(root: Path) -> None:
    """Leave out of this process, and of what it starts, what would take precedence over a checkout's `.env`.

    Compose and the settings prefer variables to `.env`, and shells export some for other programs: those that are named
    like a setting, as many programs have a DOMAIN or a WORKER_CPUS, and Compose's own, which may name another project.
    Those that choose an engine, such as DOCKER_HOST, have their effect. The Makefile does the same for the commands
    that it starts.
    """
    read = (name for file in (root / "compose").rglob("*.yaml") for name in re.findall(r"\$\{(\w+)", file.read_text()))
    # `make BUNDLE=` empties the digests; a proxy may be set in the shell.
    names = (name for name in {*read, *StackSettings.variables()} if not name.lower().endswith(("_digest", "_proxy")))
    leave_out(re.compile("|".join([_OTHERS, *names])))
    set_environment(proxies.for_containers(dotenv_values(root / ".env")))
