"""Printing a job's log as it arrives, with unfinished lines, to a terminal and to a file."""

import os
import pty
import sys

import pytest

from mlplatform.cli.output import print_log

TEXTS = ["one\nload", "ing", "\r       \r 10% of a bar that is long", "\r 20%\rtw", "o\x07\x1b[2J\nthree\n"]


def test_file_has_all_states_and_nothing_that_controls_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_log(TEXTS)
    assert capsys.readouterr().out == "one\nloading\r       \r 10% of a bar that is long\r 20%\rtwo\nthree\n"


def test_unfinished_line_stays_in_one_row_of_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    monkeypatch.setenv("COLUMNS", "10")
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        print_log(TEXTS)
        shown = ""
        while not shown.endswith("three\r\n\r\x1b[K"):
            shown += os.read(ours, 65536).decode()
    os.close(ours)
    assert [row.rpartition("\r\x1b[K")[2] for row in shown.split("\r\n")] == ["one", "two", "three", ""]
    assert "\r\x1b[Kloading\r\x1b[K 10% of a\r\x1b[Ktw\r\x1b[K" in shown
