"""Upgrades, rotations and restores that were interrupted: until one is complete, no other verb changes the stack."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mlplatform.errors import HostError
from mlplatform.files import atomic
from mlplatform.stack import checkout

UPGRADE = Path(".stack") / "upgrade"
"""Folder of an upgrade."""

FACTS = "facts.json"
"""File in it that is removed first when the upgrade is complete."""

ROTATION = Path("secrets") / "next"
"""Folder with the new secrets of a rotation."""

_RESTORE = Path(".stack") / "restore"
"""File with the source of a restore, from its first change to its last one."""


def check(root: Path, continues: str = "") -> None:
    """Refuse to change a stack in the middle of another change.

    Args:
        root: folder of the checkout.
        continues: the verb that is about to run, which may continue its own.

    Raises:
        HostError: an upgrade, rotation or restore was interrupted; the message names the command that completes it.
    """
    for verb, sentence in interrupted(root):
        if verb != continues:
            raise HostError(sentence)


def interrupted(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the verb of each change that was interrupted, and a sentence with the command that completes it."""
    if has_upgrade(root):
        yield "upgrade", "An upgrade was interrupted: `make upgrade` completes it."
    if has_rotation(root):
        yield "rotate", "A rotation of secrets was interrupted: `make rotate` completes it."
    if has_restore(root):
        source = (root / _RESTORE).read_text()
        yield (
            "restore",
            f"A restore was interrupted: repeat `make restore FROM={source}`, or delete {_RESTORE} to start with the "
            "part of the data that is there.",
        )


def has_upgrade(root: Path) -> bool:
    """Return whether an upgrade was interrupted."""
    return (root / UPGRADE / FACTS).exists()


def has_rotation(root: Path) -> bool:
    """Return whether a rotation was interrupted."""
    return (root / ROTATION).exists()


def has_restore(root: Path) -> bool:
    """Return whether a restore was interrupted, so that nobody has written anything since."""
    return (root / _RESTORE).exists()


def begin_restore(root: Path, source: str) -> None:
    """Record that a restore begins to change the stack.

    Args:
        root: folder of the checkout.
        source: value of FROM=, with the words of further variables behind it.
    """
    checkout.state_folder(root)
    with atomic.new_file(root / _RESTORE) as draft:
        draft.write_text(source)


def end_restore(root: Path) -> None:
    """Record that a restore is complete."""
    (root / _RESTORE).unlink(missing_ok=True)
