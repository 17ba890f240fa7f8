"""Single settings in `.env`: their lines, and changes of them, which leave the other lines as they are."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from io import StringIO
from pathlib import Path

from dotenv import dotenv_values
from dotenv.parser import parse_stream

from mlplatform.files import atomic
from mlplatform_stack.settings import StackSettings


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
