"""Owners of the stack's volumes, `python -m mlplatform_stack.bootstrap.ownership VOLUME=UID:GID ...`.

Each group of services has a user id of its own, and so high that hosts assign it to nobody: whoever has the id of a
container's process reads its secrets in /proc/<pid>/root. The compose files have the ids.

This one-shot gives each volume, mounted at /volumes/<name>, to the user of its services: Docker gives a new one to
root, or to the user of an official image. The top folder of a volume changes last, so that its owner tells whether all
of the volume was changed: the next start continues a pass that was interrupted, and does not look into a volume that is
finished.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from mlplatform.errors import HostError, PlatformError

Ids = tuple[int, int]
"""User and group id."""

VOLUMES = Path("/volumes")

_UNKNOWN_CLUSTER = ("postgres/PG_VERSION", 999)
"""File of a database cluster, and the user to whom it belongs if a version up to 0.3 has written the volumes."""


def give(volume: Path, ids: Ids) -> int:
    """Give a volume and all that it contains to a user and group; return the number of changed files and folders.

    Links are changed themselves, and other file systems that are mounted in the volume are left out.

    Raises:
        OSError: something could not be read or changed.
    """
    top = volume.lstat()
    if (top.st_uid, top.st_gid) == ids:
        return 0
    changed = 0
    for _, folders, files, descriptor in os.fwalk(volume, onerror=_raise):
        for name in (*files, *folders):
            found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if found.st_dev != top.st_dev:
                folders[:] = [folder for folder in folders if folder != name]
            elif (found.st_uid, found.st_gid) != ids:
                os.chown(name, *ids, dir_fd=descriptor, follow_symlinks=False)
                changed += 1
    os.chown(volume, *ids, follow_symlinks=False)
    return changed + 1


def give_all(root: Path, owners: Mapping[str, Ids]) -> None:
    """Give every volume below `root` to the user of its services.

    Raises:
        HostError: the volumes are of a version that cannot be upgraded, and none was changed; or a volume could not be
            changed, and those before it were.
    """
    _check(root)
    for name, ids in sorted(owners.items()):
        try:
            changed = give(root / name, ids)
        except OSError as error:
            raise HostError(
                f"The volume {name} could not be given to user {ids[0]} ({error}): start the stack again to continue."
            ) from error
        if changed:
            print(f"{name}: {changed:,} files and folders now belong to {ids[0]}:{ids[1]}.")


def parse(arguments: Iterable[str]) -> dict[str, Ids]:
    """Return user and group of each volume from arguments such as `postgres=27004:27004`."""
    owners = {}
    for argument in arguments:
        name, _, ids = argument.partition("=")
        user, _, group = ids.partition(":")
        owners[name] = (int(user), int(group))
    return owners


def _check(root: Path) -> None:
    """Raise HostError if the volumes are of a version up to 0.3, whose services could not read them afterwards."""
    path, user = _UNKNOWN_CLUSTER
    cluster = root / path
    if cluster.exists() and cluster.stat().st_uid == user:
        raise HostError(
            "The volumes are of version 0.3 or earlier, which this version cannot upgrade, so nothing was changed: run "
            "`make up` in a checkout of the version that wrote them, which `git reflog` names, or start a new stack "
            "with another STACK_PREFIX in .env."
        )


def _raise(error: OSError) -> None:
    raise error


if __name__ == "__main__":
    try:
        give_all(VOLUMES, parse(sys.argv[1:]))
    except PlatformError as error:
        sys.exit(str(error))
