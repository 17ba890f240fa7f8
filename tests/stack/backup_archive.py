"""Backups in a folder, read with the restic of the platform's image."""

from __future__ import annotations

import json
from pathlib import Path

from host import Stack, run

_RESTIC = "--no-lock --no-cache --repo=/target --password-file=/run/secrets/backup_password"


def archive(stack: Stack, backups: Path, path: Path) -> Path:
    """Write the latest backup's tar to a file, unencrypted; return the file."""
    _restic(stack, backups, f"dump latest /stack.tar >{path}")
    return path


def snapshots(stack: Stack, backups: Path) -> list[str]:
    """Return the id of each backup, oldest first."""
    found = json.loads(_restic(stack, backups, "snapshots --json"))
    return [entry["id"] for entry in sorted(found, key=lambda entry: entry["time"])]


def _restic(stack: Stack, backups: Path, arguments: str) -> str:
    command = ["platform/compose.sh", "run", "--rm", "--no-TTY", "--no-deps", f"--volume={backups}:/target:ro"]
    command += ["--entrypoint=restic", "backup", _RESTIC, arguments]
    return run("bash", "-c", " ".join(command), cwd=stack.root).stdout
