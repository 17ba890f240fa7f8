"""Text for a terminal: without what would control the terminal, or show characters in another order than they have."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TextIO

_SEQUENCES = re.compile(
    r"\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # titles and links, up to their terminator
    r"|\x1b[PX^_][^\x1b\n]*\x1b\\"  # device control strings
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colors, cursor movements
    r"|\x1b[ -/]*[0-~]"  # two-character sequences
)

# C0 but tab and line feed, DEL, C1, and the controls of bidirectional text (Unicode Standard Annex 9).
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

# Half a character, which JSON can escape and no encoding can write.
_SURROGATES = re.compile(r"[\ud800-\udfff]")


def without_sequences(text: str) -> str:
    """Return a text without complete escape sequences; single control characters remain."""
    return _SEQUENCES.sub("", text)


def printable(text: str) -> str:
    """Return a text without escape sequences and control characters, apart from tabs and line feeds."""
    return _SURROGATES.sub("\ufffd", _CONTROLS.sub("", without_sequences(text)))


class PrintableStream:
    """A text stream that makes everything printable before it is written to another stream."""

    def __init__(self, stream: TextIO) -> None:
        self.raw = stream
        """The other stream, for text that may control the terminal."""

    def write(self, text: str) -> int:
        """Write a text without what is not printable."""
        self.raw.write(printable(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write lines without what is not printable."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        return getattr(self.raw, name)
