"""Upgrades, rotations and restores that were interrupted: until one is complete, no other verb changes the stack."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mlplatform.errors import HostError

UPGRADE = Path(".stack") / "upgrade"
"""Folder of an upgrade."""

FACTS = "facts.json"
"""File in it that is removed first when the upgrade is complete."""

ROTATION = Path("secrets") / "next"
"""Folder with the new secrets of a rotation."""

RESTORE = Path(".stack") / "restore"
"""File with the source of a restore."""

_CHANGES = {
    "upgrade": (UPGRADE / FACTS, "An upgrade was interrupted: `make upgrade` completes it."),
    "rotate": (ROTATION, "A rotation of secrets was interrupted: `make rotate` completes it."),
    "restore": (
        RESTORE,
        "A restore was interrupted: repeat `make restore FROM={source}`, or delete {file} to start with the part of "
        "the data that is there.",
    ),
}
"""Verb -> what exists from its first change to its last one, and the sentence about it."""


def check(root: Path, continues: str = "") -> None:
    """Refuse to change a stack in the middle of another change.

    Args:
        continues: the verb that is about to run, which may continue its own.

    Raises:
        HostError: an upgrade, rotation or restore was interrupted; the message names the command that completes it.
    """
    for verb, sentence in interrupted(root):
        if verb != continues:
            raise HostError(sentence)


def interrupted(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the verb of each change that was interrupted, and a sentence with the command that completes it."""
    for verb, (_, sentence) in _CHANGES.items():
        if has(root, verb):
            source = (root / RESTORE).read_text() if verb == "restore" else ""
            yield verb, sentence.format(source=source, file=RESTORE)


def has(root: Path, verb: str) -> bool:
    """Return whether a change by this verb was interrupted."""
    return (root / _CHANGES[verb][0]).exists()
