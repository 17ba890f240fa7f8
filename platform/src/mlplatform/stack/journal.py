"""Steps of which either all take effect or none, also if the program is killed meanwhile.

A journal on disk has the steps that were begun and done. Whoever runs the same steps with it again continues: forwards,
or backwards after a failure. So each `do` and `undo` must be repeatable, also after half of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mlplatform.errors import HostError
from mlplatform.files import atomic


@dataclass(frozen=True)
class Step:
    """A step and its reverse.

    Attributes:
        name: identifies the step in the journal.
        doing: the step in a sentence, such as "building the images".
        do: performs it.
        undo: reverses it, and returns what it restored; None if there is nothing to reverse.
    """

    name: str
    doing: str
    do: Callable[[], None]
    undo: Callable[[], str] | None = None


@dataclass
class Journal:
    """Progress of the steps, and facts that they need after a crash.

    Attributes:
        path: its file.
        facts: what was decided before the first step.
        begun: names of the steps that have begun and are not undone.
        done: names of the steps that are done.
        failed: the step that failed, in a sentence; empty while none has.
        reason: why it failed.
        restored: what was restored since then.
    """

    path: Path
    facts: dict[str, str]
    begun: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    failed: str = ""
    reason: str = ""
    restored: list[str] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> Journal | None:
        """Read a journal; None if there is none."""
        return cls(path, **json.loads(path.read_text())) if path.is_file() else None

    def write(self) -> None:
        """Write the journal, whole or not at all."""
        content = asdict(self)
        del content["path"]
        with atomic.new_file(self.path) as draft:
            draft.write_text(json.dumps(content, indent=1))


class UndoneError(HostError):
    """A step failed, and all steps are undone; the journal has which one and why."""


def run(steps: Sequence[Step], journal: Journal, report: Callable[[str], None]) -> None:
    """Do all steps; after a failure, undo those that were begun, the last one first.

    Args:
        steps: the steps; after a crash, those of the run before.
        journal: a new journal, or that of a run that was interrupted.
        report: gets a sentence per step.

    Raises:
        UndoneError: a step failed.
        HostError: a step could not be undone; another run continues with it.
    """
    if not journal.failed:
        _do(steps, journal, report)
    if journal.failed:
        _undo(steps, journal, report)
        raise UndoneError(f"failed while {journal.failed} ({journal.reason})")


def _do(steps: Sequence[Step], journal: Journal, report: Callable[[str], None]) -> None:
    for step in steps:
        if step.name in journal.done:
            continue
        if step.name not in journal.begun:
            journal.begun.append(step.name)
            journal.write()
        report(f"{step.doing} ...")
        try:
            step.do()
        except (Exception, KeyboardInterrupt) as error:
            journal.failed, journal.reason = step.doing, _reason(error)
            journal.write()
            report(f"{step.doing} failed: {error or 'interrupted'}")
            return
        journal.done.append(step.name)
        journal.write()


def _undo(steps: Sequence[Step], journal: Journal, report: Callable[[str], None]) -> None:
    for step in reversed(steps):
        if step.name not in journal.begun:
            continue
        if step.undo:
            report(f"reversing: {step.doing} ...")
            try:
                journal.restored.append(step.undo())
            except Exception as error:
                raise HostError(
                    f"Failed while {journal.failed} ({journal.reason}), and reversing it stopped at {step.doing} "
                    f"({_reason(error)}): correct that and repeat the command, which continues."
                ) from error
        journal.begun.remove(step.name)
        journal.write()


def _reason(error: BaseException) -> str:
    """Return the first line of an error, without the mark that ends its sentence."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".:") if lines else "interrupted" if isinstance(error, KeyboardInterrupt) else repr(error)
