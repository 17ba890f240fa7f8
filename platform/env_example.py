"""Text of `.env.example`, which `make format` writes from the fields of the settings, and `make style` compares.

python platform/env_example.py FILE [--check]
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from mlplatform.settings.setting import Section
from mlplatform_stack.settings import StackSettings

_WIDTH = 120

_HEADING_WIDTH = 117

_FIRST_LINES = """\
Every setting of the stack, with its default. `make env` copies this file to .env once and fills in what it detects on
this host. To change a setting, edit .env and run `make up` again; what a shell exports under these names has no effect.
Secrets are not set here: they are files in secrets/.

Written by `make format` from the fields of `mlplatform_stack.settings.StackSettings`.
"""


def text() -> str:
    """Return the file: each setting below its comment, each section below its heading."""
    sections = reversed([base for base in StackSettings.__bases__ if issubclass(base, Section)])
    return "\n".join([*_comment(_FIRST_LINES), *(line for section in sections for line in _lines(section)), ""])


def _lines(section: type[Section]) -> Iterator[str]:
    heading, _, introduction = inspect.cleandoc(section.__doc__ or "").partition("\n")
    yield from ("", f"# --- {heading.rstrip('.')} ".ljust(_HEADING_WIDTH, "-"))
    if introduction:
        yield from ("", *_comment(introduction))
    for number, field in enumerate(section.model_fields.values()):
        # A setting without a comment belongs to the one before it.
        if field.description or not number:
            yield from ("", *_comment(field.description or ""))
        name = str(field.validation_alias)
        shown = field.examples[0] if field.examples else section.defaults().get(name, "")
        yield f"{name}={shown}"


def _comment(words: str) -> Iterator[str]:
    """Yield lines of comments; an empty line separates paragraphs."""
    for number, paragraph in enumerate(words.strip().split("\n\n")):
        if number:
            yield "#"
        yield from textwrap.wrap(paragraph, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


if __name__ == "__main__":
    file = Path(sys.argv[1])
    if "--check" not in sys.argv:
        file.write_text(text())
    elif file.read_text() != text():
        sys.exit(f"{file} differs from the fields of the settings: run `make format`.")
