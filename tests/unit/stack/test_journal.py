"""Steps with a journal: all done or all undone, whichever step fails, and wherever the program is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlplatform.errors import HostError
from mlplatform.stack.journal import Journal, Step, UndoneError, run

NAMES = ["one", "two", "three", "four"]


class Killed(BaseException):
    """The end of the process."""


class World:
    """Steps that each change a value, in half and then whole; a call of `breaks` fails or kills in the middle."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = dict.fromkeys(NAMES, 0)
        self.calls: list[str] = []
        self.breaks: dict[str, type[BaseException]] = {}

    def steps(self) -> list[Step]:
        # The second one has nothing to reverse.
        return [
            Step(name, f"doing {name}", self._do(name), None if name == "two" else self._undo(name)) for name in NAMES
        ]

    def run(self) -> None:
        journal = Journal.load(self.path)
        if journal is None:
            journal = Journal(self.path, {"to": "b"})
            journal.write()
        run(self.steps(), journal, lambda sentence: None)

    def _do(self, name: str):  # type: ignore[no-untyped-def]
        def do() -> None:
            self.state[name] = 1
            self._call(f"do {name}")
            self.state[name] = 2

        return do

    def _undo(self, name: str):  # type: ignore[no-untyped-def]
        def undo() -> str:
            self.state[name] = min(self.state[name], 1)
            self._call(f"undo {name}")
            self.state[name] = 0
            return name

        return undo

    def _call(self, call: str) -> None:
        self.calls.append(call)
        if kind := self.breaks.pop(call, None):
            raise kind(f"{call} broke.\nmore")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "journal.json")


def test_all_steps_are_done_in_order(world: World) -> None:
    world.run()
    assert world.calls == [f"do {name}" for name in NAMES]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [HostError, OSError, KeyboardInterrupt])
def test_failed_step_and_earlier_ones_are_undone_backwards(world: World, name: str, kind: type[BaseException]) -> None:
    world.breaks[f"do {name}"] = kind
    with pytest.raises(UndoneError, match=rf"failed while doing {name} \(do {name} broke\)"):
        world.run()
    begun = NAMES[: NAMES.index(name) + 1]
    undone = [f"undo {each}" for each in reversed(begun) if each != "two"]
    assert world.calls == [f"do {each}" for each in begun] + undone
    assert {each: value for each, value in world.state.items() if each != "two"} == {"one": 0, "three": 0, "four": 0}


@pytest.mark.parametrize("name", NAMES)
def test_killed_program_continues_with_its_step(world: World, name: str) -> None:
    world.breaks[f"do {name}"] = Killed
    with pytest.raises(Killed):
        world.run()
    world.run()
    assert set(world.state.values()) == {2}
    assert [world.calls.count(f"do {each}") for each in NAMES] == [1 + (each == name) for each in NAMES]


@pytest.mark.parametrize("name", ["four", "three", "one"])
@pytest.mark.parametrize("kind", [Killed, OSError])
def test_interrupted_return_continues_with_its_step(world: World, name: str, kind: type[BaseException]) -> None:
    world.breaks |= {"do four": OSError, f"undo {name}": kind}
    with pytest.raises(HostError if kind is OSError else Killed) as raised:
        world.run()
    assert not isinstance(raised.value, UndoneError)
    with pytest.raises(UndoneError, match="failed while doing four"):
        world.run()
    assert {each: value for each, value in world.state.items() if each != "two"} == {"one": 0, "three": 0, "four": 0}
    for each in ("four", "three", "one"):
        assert world.calls.count(f"undo {each}") == 1 + (each == name), "a finished step was undone again"
    assert world.calls.count("do four") == 1, "a failed step was tried again"
