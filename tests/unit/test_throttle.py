"""Warnings at most once per interval, and failed log-ins per address."""

from __future__ import annotations

import logging

import pytest

from mlplatform.throttle import LoginThrottle, ThrottledWarning, throttled_text


def test_warning_repeats_only_after_interval(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [5.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    warn = ThrottledWarning(logging.getLogger("throttled"), 30.0)
    for moment in (5.0, 5.1, 34.9, 35.0, 36.0):
        clock[0] = moment
        warn("down since %s", moment)
    assert [record.getMessage() for record in caplog.records] == ["down since 5.0", "down since 35.0"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    moment = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: moment[0])
    return moment


def test_eleventh_failure_within_a_minute_is_throttled(clock: list[float]) -> None:
    throttle = LoginThrottle()
    answers = []
    for _ in range(11):
        answers.append(throttle.fail("10.0.0.1"))
        clock[0] += 1
    assert answers == [0] * 10 + [50]
    assert throttle.seconds_left("10.0.0.1") == 49


def test_throttled_failures_do_not_extend_the_wait(clock: list[float]) -> None:
    throttle = LoginThrottle(failures=2)
    for _ in range(50):
        throttle.fail("10.0.0.1")
    clock[0] += 59.9
    assert throttle.fail("10.0.0.1") == 1
    clock[0] += 0.1
    assert throttle.fail("10.0.0.1") == 0


def test_other_addresses_are_not_throttled(clock: list[float]) -> None:
    throttle = LoginThrottle(failures=1)
    throttle.fail("10.0.0.1")
    assert throttle.fail("10.0.0.1") == 60
    assert (throttle.seconds_left("10.0.0.2"), throttle.fail("10.0.0.2")) == (0, 0)


def test_address_that_failed_least_recently_is_forgotten(clock: list[float]) -> None:
    throttle = LoginThrottle(failures=1, addresses=2)
    for address in ("10.0.0.1", "10.0.0.2", "10.0.0.3"):
        throttle.fail(address)
    assert [throttle.seconds_left(f"10.0.0.{n}") for n in (1, 2, 3)] == [0, 60, 60]


def test_throttled_sentence_names_the_wait() -> None:
    assert "retry in 7 s" in throttled_text(7)
