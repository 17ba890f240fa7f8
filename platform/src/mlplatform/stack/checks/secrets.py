"""Modes and completeness of the folder with the secrets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mlplatform.stack import secrets_folder
from mlplatform.stack.checks.finding import Finding, Place


def files(place: Place) -> Iterator[Finding]:
    """Yield a folder that other users can open, and secrets that are missing or empty."""
    folder = place.root / "secrets"

    def complete() -> None:
        secrets_folder.write_missing(folder)

    if folder.is_dir() and (mode := folder.stat().st_mode & 0o777) != 0o700:
        yield Finding(
            f"{folder} has the mode {mode:04o} instead of 0700.",
            "Its files are readable by all, so that the folder's mode alone keeps other users of this host out.",
            f"chmod 700 {folder}",
            repair=lambda: folder.chmod(0o700),
        )
    missing = [name for name in secrets_folder.FILES if not _filled(folder / name)]
    if missing:
        yield Finding(
            f"{len(missing)} files of {folder} are missing or empty: {', '.join(missing)}.",
            "A service without its password does not start, or falls back to a known one.",
            "make env",
            blocks=True,
            repair=complete,
        )


def _filled(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0
