"""Home of a person on this host, `/homes/NAME`: files and packages that outlive the person's dev environments."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from mlplatform import overlay

HOMES = Path("/homes")
"""A volume of each host of a stack; the embedded platform has none."""

_LESSONS = Path("/home/jovyan/work")


def prepare(person: str) -> Path:
    """Return the home of a person, made with the lessons at the first time."""
    home = HOMES / person
    if not home.is_dir():
        home.mkdir(mode=0o700)
        if _LESSONS.is_dir():
            shutil.copytree(_LESSONS, home, dirs_exist_ok=True)
        print(f"The home {home} of this host is new: the lessons are in it. Other hosts have others.", flush=True)
    return home


def variables(home: Path) -> dict[str, str]:
    """Return the variables with which programs use a home and its virtual environment, which is made if need be.

    It sees the packages of the image, so that `pip` and `%pip` add to them or shadow them, in the home.
    """
    folder = home / ".venv"
    # Packages for an image's earlier Python stay beside it.
    overlay.create(folder)
    return {
        "HOME": str(home),
        "VIRTUAL_ENV": str(folder),
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "SHELL": "/bin/bash",
        "EDITOR": "nano",
    }
