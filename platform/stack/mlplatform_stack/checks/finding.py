"""A finding of `mlplatform doctor`, and the place that its checks look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mlplatform_stack.settings import StackSettings


@dataclass(frozen=True)
class Finding:
    """A problem.

    Attributes:
        problem: one sentence with the value.
        why: one sentence with the consequence.
        fix: command that fixes it, or one sentence if none does.
        blocks: the stack cannot start, or does not work, before it is fixed.
        repair: applies a safe fix: one that neither deletes data nor interrupts a job, and that may be repeated.
    """

    problem: str
    why: str
    fix: str
    blocks: bool = False
    repair: Callable[[], object] | None = field(default=None, compare=False)

    def __str__(self) -> str:
        kind = "Problem" if self.blocks else "Note"
        return f"{kind}: {self.problem}\n  Why: {self.why}\n  Fix: {self.fix}"

    def as_json(self) -> dict[str, object]:
        """Return the fields for `--json`."""
        shown = {name: getattr(self, name) for name in ("problem", "why", "fix", "blocks")}
        return {**shown, "safe_fix": self.repair is not None}


@dataclass(frozen=True)
class Place:
    """Checkout and host that the checks look at.

    Attributes:
        only: half of the stack; empty for all of it.
        proc: the kernel's files; tests simulate other hosts with a folder.
        dev: the devices, as well.
    """

    root: Path
    only: str = ""
    proc: Path = Path("/proc")
    dev: Path = Path("/dev")

    @property
    def settings(self) -> StackSettings:
        """Settings of the checkout's `.env`."""
        return StackSettings.load(self.root / ".env")
