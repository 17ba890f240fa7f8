"""Selection of the lessons that CI runs: those that changed since they last passed, and a few drawn at random.

`passed.txt` has the digest of the state in which each lesson last passed in `make soak`. A lesson whose digest differs
has changed, in any clone, shallow ones included. Standard library only.
"""

from __future__ import annotations

import ast
import hashlib
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
PASSED = Path(__file__).with_name("passed.txt")
PINS = CHECKOUT / "images" / "ray" / "requirements.txt"
CHANGED_AT_MOST = 4
"""Changed lessons that CI runs: four of the long ones, two at a time, take six minutes on two cores, or twice that."""

DISTRIBUTIONS = {"PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml"}
"""Names on the package index of modules whose name differs."""


@dataclass(frozen=True)
class Selection:
    """Names of lessons.

    Attributes:
        changed: those to run because they changed.
        drawn: those to run besides, drawn at random.
        left: those that changed, but are left to `make soak` because too many have.
    """

    changed: list[str]
    drawn: list[str]
    left: list[str]


def select(
    digests: Mapping[str, str],
    own: Iterable[str],
    long: Iterable[str],
    passed: Mapping[str, str],
    share: int,
    seed: str,
    most: int = CHANGED_AT_MOST,
) -> Selection:
    """Select lessons for one tier of tests; the same seed selects the same ones.

    Args:
        digests: current digest of each lesson that the tier can run.
        own: the lessons that this tier runs when they change; another tier runs the others.
        long: lessons that are never drawn, only run when they change.
        passed: digest with which each lesson last passed.
        share: number of lessons to draw.
        seed: state of the repository.
        most: number of changed lessons that run at most.
    """
    chance = random.Random(seed)  # noqa: S311
    changed = sorted(name for name in own if passed.get(name) != digests[name])
    run = sorted(chance.sample(changed, min(most, len(changed))))
    others = sorted(digests.keys() - set(changed) - set(long))
    return Selection(
        run, sorted(chance.sample(others, min(share, len(others)))), [name for name in changed if name not in run]
    )


def digest(script: Path, *more: str, pins: Path = PINS) -> str:
    """Digest of a lesson: its script, the files beside it that the script uses, its packages' versions, and `more`.

    Args:
        script: path of the script.
        more: arguments, options and the source of the check.
        pins: requirements file with the version of each package.
    """
    files = used_files(script)
    modules = {module for file in files if file.suffix == ".py" for module in imports(file)}
    names = {DISTRIBUTIONS.get(module, module.replace("_", "-")).lower() for module in modules}
    found = re.findall(r"^([\w.-]+)(?:\[[^]]*])?==([^\s;\\]+)", pins.read_text(), flags=re.M)
    versions = sorted(f"{name}=={version}" for name, version in found if name.lower() in names)
    hashed = hashlib.sha256()
    for part in (*(file.read_bytes() for file in files), *map(str.encode, (*versions, *more))):
        hashed.update(len(part).to_bytes(8, "big") + part)
    return hashed.hexdigest()[:16]


def definition(module: Path, name: str) -> str:
    """Source of a function, and of the functions and constants of its module that it uses, directly or not."""
    source = module.read_text()
    nodes = {
        defined: node
        for node in ast.parse(source).body
        for defined in ([node.name] if isinstance(node, ast.FunctionDef) else assigned(node))
    }
    found, new = set[str](), {name}
    while new:
        found |= new
        used = {node.id for each in new for node in ast.walk(nodes[each]) if isinstance(node, ast.Name)}
        new = used & nodes.keys() - found
    # The text, not `ast.unparse`, whose quotes depend on Python's version.
    return "\n".join(ast.get_source_segment(source, nodes[each]) or "" for each in sorted(found))


def assigned(node: ast.stmt) -> list[str]:
    return [target.id for target in getattr(node, "targets", []) if isinstance(target, ast.Name)]


def used_files(script: Path) -> list[Path]:
    """The script, the modules beside it that it imports, directly or not, and other files that one of these names."""
    found, new = set[Path](), {script}
    while new:
        found |= new
        scripts = [file for file in new if file.suffix == ".py"]
        new = {beside for file in scripts for beside in used_by(file)} - found
    return sorted(found)


def used_by(script: Path) -> Iterator[Path]:
    """Modules beside a script that it imports, and files beside it whose name is one of its strings."""
    strings = {node.value for node in ast.walk(parsed(script)) if isinstance(node, ast.Constant)}
    for file in script.parent.iterdir():
        if file.is_file() and (file.name in strings or (file.suffix == ".py" and file.stem in imports(script))):
            yield file


def imports(script: Path) -> set[str]:
    """Top-level names of the modules that a script imports, inside functions too."""
    names = set()
    for node in ast.walk(parsed(script)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


def parsed(script: Path) -> ast.Module:
    return ast.parse(script.read_text())


def read(file: Path = PASSED) -> dict[str, str]:
    """Digest with which each lesson last passed, by name."""
    lines = file.read_text().splitlines() if file.exists() else []
    return {name: value for value, name in (line.split(maxsplit=1) for line in lines)}


def record(name: str, value: str, known: Iterable[str], file: Path = PASSED) -> None:
    """Record that a lesson has passed with this digest; drops lessons that are not among the known ones."""
    passed = {**read(file), name: value}
    kept = sorted(passed.keys() & {*known, name})
    file.write_text("".join(f"{passed[each]}  {each}\n" for each in kept))
