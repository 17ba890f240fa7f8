"""Backup of the stack while it runs, and restore into a stack on any host, under any prefix."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlplatform.contract import BACKUP_SERVERS
from mlplatform.errors import HostError, SettingsError, StorageError
from mlplatform.files import atomic
from mlplatform_stack import checkout, env_file, secrets_folder, services, unfinished
from mlplatform_stack import compose as stack_compose
from mlplatform_stack.backup.repository import FOLDER
from mlplatform_stack.docker import compose, output
from mlplatform_stack.secrets_folder import S3_ROLES, TO_FILL_IN
from mlplatform_stack.settings import StackSettings

_HAS_DATA = 3

_OF_THE_VOLUMES = {"postgres_password", "store_root_password", "backup_password"}
_OF_THE_VOLUMES |= {f"s3_{role}" for role in ("owner", *S3_ROLES)}
"""Secrets that a restore keeps: the databases and the object store accept them, or backups are encrypted with them."""


def backup(root: Path, target: str, *, with_secrets: bool = False) -> None:
    """Save the stack to a folder or server, where later backups add what has changed.

    Raises:
        StorageError: it could not be saved; the container has printed the reason.
    """
    StackSettings.load(root / ".env")  # names what is invalid before a container starts
    command = compose(root, "run", "--rm", "--no-TTY")
    if with_secrets:
        command += ["--volume", f"{root / 'secrets'}:/backup/secrets:ro"]
    if not target.startswith(BACKUP_SERVERS):
        folder = Path(target).expanduser().absolute()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        command += ["--volume", f"{folder}:{FOLDER}"]
    command += ["backup", "save", target]
    if subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode:
        raise StorageError(f"No backup was made at {target}: the reason is above.")


def restore(root: Path, source: str, snapshot: str = "latest", *, force: bool = False) -> Iterator[str]:
    """Verify a backup completely, then replace the stack's data by it, and start the stack.

    Args:
        root: folder of the checkout, whose settings and secrets exist.
        source: what was the target of the backup.
        snapshot: id of a backup.
        force: replace data; an unfinished restore can be repeated without.

    Yields:
        A line per setting of the backup that was adopted, and per kind that was kept.

    Raises:
        StorageError: the backup is damaged or of a newer version; nothing was changed.
        HostError: the stack has data, another change of it was interrupted, or it did not start.
    """
    unfinished.check(root, "restore")
    mounts = _mounts(source)
    verified = _in_container(root, mounts, "verify", source, snapshot, stdout=subprocess.PIPE)
    if verified.returncode:
        raise StorageError(f"{source} was not restored and nothing was changed: the reason is above.")
    # The snapshot that was verified: meanwhile, the timer may have added one that is now the latest.
    snapshot = verified.stdout.split()[-1]
    _start_storage(root)
    status = _in_container(root, [], "has-data").returncode
    if status == _HAS_DATA and not (force or unfinished.has(root, "restore")):
        raise HostError("The stack has runs, jobs or objects: FORCE=1 deletes them and restores the backup.")
    if status not in (0, _HAS_DATA):
        raise HostError("The stack's storage does not answer: the reason is above.")
    checkout.state_folder(root)
    atomic.write(root / unfinished.RESTORE, f"{source} SNAPSHOT={snapshot}")
    _stop_all_but_storage(root)
    with tempfile.TemporaryDirectory(prefix="mlplatform-restore-") as handover:
        mounts += ["--volume", f"{handover}:/handover"]
        if _in_container(root, mounts, "apply", source, snapshot).returncode:
            raise StorageError("The restore is unfinished: the reason is above. Correct it and repeat the command.")
        yield from _adopt(root, Path(handover))
    (root / unfinished.RESTORE).unlink()
    stack_compose.up(root)


def _mounts(source: str) -> list[str]:
    """Return the options with which a container reads a backup."""
    if source.startswith(BACKUP_SERVERS):
        return []
    path = Path(source).expanduser().absolute()
    if not path.is_dir():
        raise SettingsError(f"No backup was found at {path}; name its folder or server with FROM=.")
    return ["--volume", f"{path}:{FOLDER}:ro"]


def _in_container(root: Path, mounts: list[str], *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = compose(root, "run", "--rm", "--no-TTY", "--no-deps", *mounts, "restore", *arguments)
    return subprocess.run(command, stdin=subprocess.DEVNULL, text=True, check=False, **options)


def _start_storage(root: Path) -> None:
    """Start the databases and the object store with their buckets and accounts."""
    storage = services.stores(StackSettings.load(root / ".env"))
    output(*compose(root, "up", "--detach", "--no-build", "--wait", *storage))
    output(*compose(root, "up", "--no-build", "storage-init"))


def _stop_all_but_storage(root: Path) -> None:
    """Stop what writes, and remove what Ray remembers of other jobs."""
    everything = compose(root, "--profile", "*")
    if others := sorted(set(output(*everything, "ps", "--all", "--services").split()) - set(services.STORES)):
        output(*everything, "rm", "--stop", "--force", *others)
    prefix = StackSettings.load(root / ".env").stack_prefix
    of_ray = re.compile(re.escape(f"{prefix}mlplatform_ray-") + "[a-z0-9-]+")
    if volumes := [name for name in output("docker", "volume", "ls", "--quiet").split() if of_ray.fullmatch(name)]:
        output("docker", "volume", "rm", "--force", *volumes)


def _adopt(root: Path, handover: Path) -> Iterator[str]:
    """Adopt the settings and secrets of a backup that do not belong to its host; yield a line per change."""
    saved = handover / "settings" / "env"
    before = (root / ".env").read_text()
    after = merged(before, saved.read_text() if saved.is_file() else "")
    after = env_file.changed(after, env_file.defaults_of_empty(after))
    if after != before:
        atomic.write(root / ".env", after)
    yield from (f"adopted {line}" for line in sorted(set(after.splitlines()) - set(before.splitlines())))
    yield "kept this host's settings: memory, GPUs, prefix, network, ports, images and mirrors"
    folder = handover / "secrets"
    for name in set(secrets_folder.names(root)) - _OF_THE_VOLUMES:
        if (folder / name).is_file():
            with atomic.new_file(root / "secrets" / name) as draft:
                draft.touch(mode=0o600)
                draft.write_bytes((folder / name).read_bytes())  # an operator's file may have any encoding
                draft.chmod(0o644 if name in TO_FILL_IN else 0o444)
    if folder.is_dir():
        yield "adopted the secrets of the backup, except those of this host's volumes"
    else:
        yield (
            "kept this host's secrets: webhooks of MLflow need secrets/mlflow_key of the former host, and "
            "secrets of people its secrets/gateway_secrets_key (copy them and run `make up`)"
        )


def merged(current: str, saved: str) -> str:
    """Return settings with the values of a backup where they do not belong to the host."""
    adopted = dict(re.findall(r"^([A-Z0-9_]+)=(.*)$", saved, re.M))
    names = set(re.findall(r"^([A-Z0-9_]+)=", current, re.M)) & adopted.keys() - StackSettings.of_host()
    # Also a port that only a compose file names is one of this host.
    return env_file.changed(current, {name: adopted[name] for name in names if not name.endswith("_PORT")})
