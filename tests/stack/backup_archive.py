"""Archive of the latest backup in a folder, read with the restic of the platform's image."""

from __future__ import annotations

from pathlib import Path

from host import Stack, run

_DUMP = "restic --no-lock --no-cache --repo=/target --password-file=/run/secrets/backup_password dump latest /stack.tar"


def archive(stack: Stack, backups: Path, path: Path) -> Path:
    """Write the latest backup's tar to a file, unencrypted; return the file."""
    program, *arguments = _DUMP.split()
    command = ["platform/compose.sh", "run", "--rm", "--no-TTY", "--no-deps", f"--volume={backups}:/target:ro"]
    command += [f"--entrypoint={program}", "backup", *arguments]
    run("bash", "-c", f"{' '.join(command)} >{path}", cwd=stack.root)
    return path
