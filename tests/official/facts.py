"""Facts about the images of others and their pins; `make style` runs this file. Standard library only.

It fails if a pin is below a release that closed a known hole, and names pins that were released six months ago or more:
time alone fails nothing.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("facts.toml")
CHECKOUT = FILE.parents[2]
OLD_DAYS = 183
Facts = dict[str, Any]
"""Values of one image or program, as facts.toml describes them."""


def load() -> tuple[dict[str, Facts], dict[str, Facts]]:
    """Return the facts of images that others build, and of programs that we compile."""
    found = tomllib.loads(FILE.read_text())
    return found["images"], found["built"]


def version(text: str) -> tuple[int, ...]:
    """Return the numbers of a tag or version before its first dash: `v3.13.5` and `17.11-trixie`, for example."""
    return tuple(int(number) for number in re.findall(r"\d+", text.partition("-")[0]))


def holes(pin: str, fixed: list[dict[str, str]]) -> Iterator[str]:
    """Yield the known holes of a pin.

    A release fixes its own line, which is all of its numbers but the last; it also counts for a pin of another line if
    no release of that line is recorded.
    """
    own = version(pin)
    lines = {version(entry["release"])[:-1] for entry in fixed}
    for entry in fixed:
        release = version(entry["release"])
        if own < release and (own[:-1] == release[:-1] or own[:-1] not in lines):
            yield f"{entry['hole']}, fixed in {entry['release']}"


def problems() -> Iterator[str]:
    """Yield pins with known holes, and programs that are compiled in another version than that of the facts."""
    images, built = load()
    for name, entry in {**images, **built}.items():
        pin = entry.get("tag", entry.get("version", ""))
        for hole in holes(pin, entry.get("fixed", [])):
            yield f"tests/official/facts.toml: {name} {pin} has a known hole: {hole}; raise the pin"
    for entry in built.values():
        for file in sorted(path for pattern in entry["files"] for path in CHECKOUT.glob(pattern)):
            pinned = set(re.findall(rf"\b{entry['argument']}[=:]([\w.-]+)", file.read_text()))
            if pinned - {entry["version"]}:
                path = file.relative_to(CHECKOUT)
                yield f"{path}: {entry['argument']} is {', '.join(sorted(pinned))}, the facts are of {entry['version']}"


def old(today: date) -> Iterator[str]:
    """Yield the pins that had been released half a year before a day."""
    images, built = load()
    for name, entry in {**images, **built}.items():
        if (today - entry["released"]).days > OLD_DAYS:
            pin = entry.get("tag", entry.get("version", ""))
            yield f"{name} {pin} is of {entry['released']}: look for a newer release (tests/official/facts.toml)"


def main() -> int:
    found, notes = list(problems()), [f"note: {line}" for line in old(date.today())]
    print("\n".join([*found, *notes]) or "Pins: none is old or has a known hole.")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
