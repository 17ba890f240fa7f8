"""The git checkout from which a stack is started: its commits, and its state beside them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from mlplatform.files import atomic
from mlplatform_stack.docker import answer, output

_STATE = ".stack"

_STARTED = "started.json"


def state_folder(root: Path) -> Path:
    """Return the folder for what a stack's verbs remember; it is only for its owner, and git ignores it."""
    folder = root / _STATE
    folder.mkdir(mode=0o700, exist_ok=True)
    # Also in the checkout of a version that has never had such a folder.
    if not (ignore := folder / ".gitignore").exists():
        ignore.write_text("*\n")
    return folder


def commit(root: Path, name: str = "HEAD") -> str:
    """Return the commit that a name means; empty if there is none, or if `root` is not the top of a checkout."""
    top = _answer(root, "rev-parse", "--show-toplevel")
    if not top or Path(top).resolve() != root.resolve():
        return ""
    return _answer(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")


def version(root: Path, name: str) -> str:
    """Return the version of the platform at a commit; empty if it has none."""
    text = _answer(root, "show", f"{name}:platform/pyproject.toml")
    return str(tomllib.loads(text)["project"]["version"]) if text else ""


def obstacles(root: Path, one: str, other: str) -> list[str]:
    """Return the files with changes of the operator's that git would have to overwrite between two commits."""
    changed = _answer(root, "diff", "--name-only", "HEAD").splitlines()
    differing = set(_answer(root, "diff", "--name-only", one, other).splitlines())
    return [path for path in changed if path in differing]


def switch(root: Path, name: str) -> None:
    """Check out a commit; changes of the operator's are kept.

    Raises:
        HostError: git refuses.
    """
    output("git", "-C", str(root), "checkout", "--quiet", "--detach", name)


def record_start(root: Path, only: str | None) -> None:
    """Remember the commit from which the stack was started, for an upgrade; nothing without a checkout."""
    if found := commit(root):
        with atomic.new_file(state_folder(root) / _STARTED) as draft:
            draft.write_text(json.dumps({"commit": found, "only": only or ""}))


def started(root: Path) -> dict[str, str]:
    """Return the commit from which the stack was last started, and its half; empty strings if that is not recorded."""
    file = root / _STATE / _STARTED
    return {"commit": "", "only": "", **(json.loads(file.read_text()) if file.is_file() else {})}


def _answer(root: Path, *arguments: str) -> str:
    """Return what git prints; empty if it fails or is not installed."""
    return answer("git", "-C", str(root), *arguments)
