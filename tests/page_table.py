"""Table of pages in README.md, from the compose files; `make format` writes it."""

from __future__ import annotations

import re
from pathlib import Path

from mlplatform_stack import services
from mlplatform_stack.settings import StackSettings

README = Path(__file__).parents[1] / "README.md"

HEADER = "| page | address | log in with |\n|---|---|---|\n"


def rows() -> str:
    """Return a row per page for people, as it is with the default settings."""
    pages = (page for page in services.pages(README.parent, StackSettings.defaults()) if page.name)
    lines = []
    for page in pages:
        login = re.sub(r"secrets/\w+", r"`\g<0>`", page.login)
        lines.append(f"| {page.title} | http://{page.name}.localhost:{page.port} | {login} |\n")
    return "".join(lines)


def written(text: str) -> str:
    """Return a document with the rows of this checkout below the header of the table."""
    before, found, after = text.partition(HEADER)
    return before + found + rows() + re.sub(r"\A(\|.*\n)*", "", after)


if __name__ == "__main__":
    README.write_text(written(README.read_text()))
