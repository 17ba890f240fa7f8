"""Upgrades and rotations that were interrupted: until they are complete, no other verb may change the stack."""

from __future__ import annotations

from pathlib import Path

from mlplatform.errors import HostError
from mlplatform.stack.rotation_files import Rotation

UPGRADE = Path(".stack") / "upgrade"
"""Folder of an upgrade."""

JOURNAL = "journal.json"


def has_upgrade(root: Path) -> bool:
    """Return whether an upgrade was interrupted."""
    return (root / UPGRADE / JOURNAL).exists()


def check_no_upgrade(root: Path) -> None:
    """Refuse to continue in the middle of an upgrade.

    Raises:
        HostError: one was interrupted.
    """
    if has_upgrade(root):
        raise HostError("An upgrade was interrupted: run `make upgrade`, which continues it.")


def check_no_rotation(root: Path) -> None:
    """Refuse to continue in the middle of a rotation.

    Raises:
        HostError: one was interrupted.
    """
    if Rotation(root / "secrets").plan:
        raise HostError("A rotation of secrets was interrupted: `make rotate` completes it.")
