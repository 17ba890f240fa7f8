"""Durations as people write and read them."""

import pytest

from mlplatform.text.durations import in_words, seconds_in, written


@pytest.mark.parametrize(
    ("text", "seconds"), [("1s", 1), ("90m", 5400), ("4h", 14400), ("2d", 172_800), ("1w", 604_800), ("0h", 0)]
)
def test_duration_is_read_in_each_unit(text: str, seconds: int) -> None:
    assert seconds_in(text) == seconds


@pytest.mark.parametrize("text", ["", "4", "h", "1.5h", "-1h", "4 h", "4H", "1000000s", "٤h", "4h30m"])
def test_other_text_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="use a number of at most 6 digits and s, m, h, d or w, as in 7d"):
        seconds_in(text)


@pytest.mark.parametrize(
    ("seconds", "text"), [(14400, "4h"), (5400, "90m"), (5401, "5401s"), (0.5, "1s"), (86400, "24h"), (0, "0s")]
)
def test_written_duration_is_read_as_the_same(seconds: float, text: str) -> None:
    assert written(seconds) == text
    assert seconds <= seconds_in(written(seconds)) < seconds + 1


def test_long_duration_is_rounded_up_to_minutes() -> None:
    assert written(1_000_001) == "16667m"


@pytest.mark.parametrize(("seconds", "text"), [(14400.0, "4 h"), (5400, "90 min"), (90, "90 s"), (0.5, "0.5 s")])
def test_duration_is_shown_in_its_largest_unit(seconds: float, text: str) -> None:
    assert in_words(seconds) == text
