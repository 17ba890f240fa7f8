"""Virtual environments in front of the one of this process: they have its packages, and add to them or shadow them.

One takes 0.1 s and 1 MB, a copy of the image's packages a minute and 5.9 GB.
"""

from __future__ import annotations

import re
import shutil
import site
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PROGRAM = re.compile(rb"#!(/bin/sh\n'''exec' .*\n' '''|/.*/python[\d.]*)\n")
"""Beginning of a program that pip or uv has written; of longer paths than Linux reads, that of a shell's program."""

_OF_PYTHON = """\
#!/bin/sh
'''exec' "{python}" "$0" "$@"
' '''
"""

_PROGRAM_BYTES = 100_000


def packages() -> list[Path]:
    """Return the metadata of the packages of this process's environment, `name-version.dist-info` each."""
    return [info for folder in site.getsitepackages() for info in sorted(Path(folder).glob("*.dist-info"))]


def own_packages(folder: Path) -> Path:
    """Return the folder of an environment's own packages, for this version of Python."""
    return folder / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


def create(folder: Path) -> None:
    """Create an environment with no packages of its own; one that exists keeps them.

    Its programs, such as torchrun, are those of this environment and run with its Python.
    """
    import venv  # imports 20 ms of others

    venv.EnvBuilder(symlinks=True).create(folder)
    # Of a folder that a line only names, Python would not execute the .pth files, which have the platform's hooks.
    # Debian's Python names folders that do not exist, which would be added to its path.
    folders = (path for path in site.getsitepackages() if Path(path).is_dir())
    behind = "".join(f"import site; site.addsitedir({path!r})\n" for path in folders)
    (own_packages(folder) / "image.pth").write_text(behind)
    for program in Path(sys.prefix, "bin").iterdir():
        if program.is_file() and program.stat().st_size < _PROGRAM_BYTES:
            content = program.read_bytes()
            if (found := _PROGRAM.match(content)) and not (folder / "bin" / program.name).exists():
                write_program(folder, program.name, content[found.end() :])


def write_program(folder: Path, name: str, content: bytes) -> None:
    """Write a program in Python for an environment."""
    path = folder / "bin" / name
    path.write_bytes(_OF_PYTHON.format(python=folder / "bin" / "python").encode() + content)
    path.chmod(0o755)


@contextmanager
def known_to_uv(folder: Path) -> Iterator[None]:
    """Let uv find this environment's packages in one that is in front of it, as it would find them here.

    uv reads the metadata in an environment's own folder only (seen in 0.13.8). A package whose version fits stays. Of
    another one, uv removes the metadata, and installs the version that is needed.
    """
    stubs = [own_packages(folder) / info.name for info in packages()]
    for info, stub in zip(packages(), stubs, strict=True):
        if not stub.exists():
            stub.mkdir()
            for name in ("METADATA", "WHEEL"):
                (stub / name).symlink_to(info / name)
            (stub / "RECORD").write_text("".join(f"{stub.name}/{name},,\n" for name in ("METADATA", "WHEEL", "RECORD")))
    try:
        yield
    finally:
        for stub in stubs:
            if (stub / "METADATA").is_symlink():
                shutil.rmtree(stub)
