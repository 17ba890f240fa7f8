"""The option with the checkout whose stack a command is about."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def _with_own_settings(root: Path) -> Path:
    from mlplatform.stack import shell

    shell.use_own_settings(root)
    return root


Root = Annotated[Path, typer.Option(help="Folder of the checkout.", show_default="here", callback=_with_own_settings)]
