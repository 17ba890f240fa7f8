"""Changes of single settings in `.env`, whose other lines stay as they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from mlplatform.files import atomic


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
