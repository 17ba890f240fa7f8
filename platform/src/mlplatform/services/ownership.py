"""Owners of the stack's volumes, `python -m mlplatform.services.ownership [--to VERSION]`.

Each group of services has a user id of its own, and so high that hosts assign it to nobody: whoever has the id of a
container's process reads its secrets in /proc/<pid>/root. Versions up to 0.3 used ids that users of hosts have too.

This one-shot gives each volume, mounted at /volumes/<user>/<name>, to the user of its services. The top folder of a
volume changes last, so that its owner tells whether all of the volume was changed: the next start continues a pass that
was interrupted, and does not look into a volume that is finished.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

from mlplatform.errors import HostError, PlatformError, SettingsError

Ids = tuple[int, int]
"""User and group id."""

OWNERS: dict[str, Ids] = {
    "minio": (27001, 27001),
    "platform": (27002, 27002),
    # Ray's nodes and the notebook, which share a volume.
    "ray": (27003, 27003),
    "postgres": (27004, 27004),
    "prometheus": (27005, 27005),
    "alertmanager": (27006, 27006),
    "postgres-exporter": (27007, 27007),
    # Its image opens files to the root group, for any user id.
    "grafana": (27008, 0),
    "proxy": (27009, 27009),
}
"""Ids of each group of services. A test compares them with the images and the compose files."""

OWNERS_UP_TO_0_3: dict[str, Ids] = {
    "minio": (1000, 1000),
    "platform": (1000, 1000),
    "ray": (1000, 1000),
    "postgres": (999, 999),
    "prometheus": (65534, 65534),
    "alertmanager": (65534, 65534),
    "grafana": (472, 0),
}
"""Ids of the versions up to 0.3, for a rollback to one of them."""

VOLUMES = Path("/volumes")


def owners(version: str | None) -> dict[str, Ids]:
    """Return the ids that a version of the platform uses; those of this one for None.

    Raises:
        SettingsError: `version` is not a version.
    """
    if version is None:
        return OWNERS
    found = re.match(r"(\d+)\.(\d+)", version)
    if not found:
        raise SettingsError(f"Invalid version {version!r}: use a released one, such as 0.3.0.")
    return OWNERS_UP_TO_0_3 if (int(found[1]), int(found[2])) <= (0, 3) else OWNERS


def give(volume: Path, ids: Ids, *, back: bool = False) -> int:
    """Give a volume and all that it contains to a user and group; return the number of changed files and folders.

    Links are changed themselves, and other file systems that are mounted in the volume are left out.

    Args:
        volume: its folder.
        ids: of the user.
        back: look into the volume in any case. If a pass was interrupted that is undone now, the top folder still has
            its former owner, and some of the files do not.

    Raises:
        OSError: something could not be read or changed.
    """
    top = volume.lstat()
    is_given = (top.st_uid, top.st_gid) == ids
    if is_given and not back:
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
    return changed + (not is_given)


def give_all(root: Path, version: str | None = None) -> None:
    """Give every volume below `root` to the user that a version uses.

    Raises:
        SettingsError: `version` is not a version.
        HostError: a volume could not be changed; those before it were.
    """
    chosen = owners(version)
    for volume in sorted(root.glob("*/*")):
        user = volume.parent.name
        if not (ids := chosen.get(user)):
            continue  # that version has no such services
        try:
            changed = give(volume, ids, back=version is not None)
        except OSError as error:
            raise HostError(
                f"The volume {volume.name} could not be given to user {ids[0]} ({error}): start the stack again to "
                "continue."
            ) from error
        if changed:
            print(f"{volume.name}: {changed:,} files and folders now belong to {ids[0]}:{ids[1]} ({user}).")


def _raise(error: OSError) -> None:
    raise error


def main() -> None:
    """Change the owners, and print the volumes that were changed."""
    parser = argparse.ArgumentParser(prog="python -m mlplatform.services.ownership")
    parser.add_argument("--to", metavar="VERSION", help="version that will use the volumes, if it is not this one")
    try:
        give_all(VOLUMES, parser.parse_args().to)
    except PlatformError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
