"""A growing log that is looked at from its end: every line once, in order, whatever it repeats."""

import random

import pytest

from mlplatform.client.log_tail import LOOKS, LogTail


class Log:
    """A log file, and what a reader gets who looks at it as `Jobs.follow` does."""

    def __init__(self) -> None:
        self.text = ""
        self.seen: list[str] = []
        self.whole_reads = 0
        self._tail = LogTail()

    def write(self, text: str) -> None:
        self.text += text

    def last(self, lines: int) -> str:
        """The last lines as Ray's agent gives them: a last line without its end counts as one."""
        return self.text if lines < 0 else "".join(self.text.splitlines(keepends=True)[-lines:])

    def look(self, *, ended: bool = False) -> None:
        for count in LOOKS[-1:] if ended else LOOKS:
            self.whole_reads += count < 0
            new = self._tail.join(self.last(count), count, ended=ended)
            if new is not None:
                self.seen += new
                return
        raise AssertionError("the whole log always tells what is new")


def test_a_line_is_given_once_it_is_complete() -> None:
    log = Log()
    log.write("one\ntw")
    log.look()
    assert log.seen == ["one"]
    log.write("o\nthree without end")
    log.look()
    log.look()
    assert log.seen == ["one", "two"]
    log.look(ended=True)
    assert log.seen == ["one", "two", "three without end"]


def test_an_empty_log_gives_nothing() -> None:
    log = Log()
    log.look()
    log.look(ended=True)
    assert log.seen == []


def test_a_long_log_is_not_read_as_a_whole_again() -> None:
    log = Log()
    log.write("".join(f"line {number}\n" for number in range(10_000)))
    log.look(ended=True)
    log.whole_reads = 0
    for number in range(10_000, 10_500):
        log.write(f"line {number}\n")
        log.look()
    assert log.seen == [f"line {number}" for number in range(10_500)]
    assert log.whole_reads == 0


def test_lines_that_all_look_the_same_are_counted() -> None:
    log = Log()
    for _ in range(40):
        log.write("nan\n" * 50)
        log.look()
    assert len(log.seen) == 2000


@pytest.mark.parametrize("seed", range(8))
def test_no_line_is_lost_or_repeated(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - the same logs in every run
    log = Log()
    for _ in range(30):
        burst = chance.choice([0, 1, 7, 60, 400, 6000])
        log.write("".join(f"{chance.choice(['', 'warning', chance.random()])}\n" for _ in range(burst)))
        log.look()
    log.look(ended=True)
    assert log.seen == log.text.splitlines()


def test_carriage_returns_of_a_progress_bar_stay_in_their_line() -> None:
    log = Log()
    log.write("10%\r50%\r100%\nnext\r\n")
    log.look()
    assert log.seen == ["10%\r50%\r100%", "next"]
