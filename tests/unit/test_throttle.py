"""Warnings at most once per interval."""

import logging

import pytest

from mlplatform.text.throttle import ThrottledWarning


def test_warning_repeats_only_after_interval(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [5.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    warn = ThrottledWarning(logging.getLogger("throttled"))
    for moment in (5.0, 5.1, 34.9, 35.0, 36.0):
        clock[0] = moment
        warn("down since %s", moment)
    assert [record.getMessage() for record in caplog.records] == ["down since 5.0", "down since 35.0"]
