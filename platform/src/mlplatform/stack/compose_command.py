"""The `docker compose` command on the shipped files."""

from __future__ import annotations

from pathlib import Path


def compose(root: Path, *arguments: str) -> list[str]:
    """Return the `docker compose` command on a checkout's files, as in the Makefile."""
    files = ["--env-file", str(root / ".env"), "--file", str(root / "compose" / "compose.yaml")]
    return ["docker", "compose", *files, *arguments]
