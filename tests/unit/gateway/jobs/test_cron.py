"""Times of schedules, in days of 23 and 25 hours too."""

from datetime import UTC, datetime
from itertools import pairwise

import pytest

from mlplatform.errors import JobError
from mlplatform_gateway.jobs.cron import next_after, on_clock

BERLIN = "Europe/Berlin"


def times(expression: str, zone: str, since: str, count: int) -> list[str]:
    """The first times after a moment in UTC, as the clocks of the zone show them."""
    moment, found = datetime.fromisoformat(since).replace(tzinfo=UTC), []
    for _ in range(count):
        later = next_after(expression, zone, moment)
        assert later > moment
        moment = later
        found.append(on_clock(moment, zone).split(" ", 1)[1].removesuffix(f" ({zone})"))
    return found


def test_time_is_that_of_the_clock_in_summer_and_winter() -> None:
    assert next_after("0 3 * * *", BERLIN, datetime(2026, 7, 1, tzinfo=UTC)) == datetime(2026, 7, 1, 1, tzinfo=UTC)
    assert next_after("0 3 * * *", BERLIN, datetime(2026, 12, 1, tzinfo=UTC)) == datetime(2026, 12, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("expression", "since", "expected"),
    [
        # The clock jumps from 02:00 to 03:00 on 29 March 2026, at 01:00 UTC.
        ("30 2 * * *", "2026-03-28T12:00", ["03:30", "02:30"]),
        ("0,30 2 * * *", "2026-03-28T12:00", ["03:00", "03:30", "02:00"]),
        ("0 * * * *", "2026-03-28T23:30", ["01:00", "03:00", "04:00"]),
        ("*/30 1-3 * * *", "2026-03-28T23:45", ["01:00", "01:30", "03:00", "03:30", "01:00"]),
        # It shows 02:00 to 03:00 twice on 25 October 2026, from 00:00 to 02:00 UTC.
        ("30 2 * * *", "2026-10-24T12:00", ["02:30", "02:30"]),
        ("0 * * * *", "2026-10-24T22:30", ["01:00", "02:00", "03:00"]),
        ("30 2 * * *", "2026-10-25T00:45", ["02:30"]),
        ("45 2 * * *", "2026-10-25T01:15", ["02:45"]),
    ],
)
def test_each_time_on_the_clock_counts_once(expression: str, since: str, expected: list[str]) -> None:
    assert times(expression, BERLIN, since, len(expected)) == expected


def test_no_time_is_lost_where_half_an_hour_is_skipped() -> None:
    # The clock jumps from 02:00 to 02:30 on 4 October 2026, at 15:30 UTC.
    expected = ["02:30", "02:40", "02:45", "02:10", "02:15"]
    assert times("10,15,30 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00", 5) == expected


@pytest.mark.parametrize("zone", [BERLIN, "Europe/London", "America/New_York", "Australia/Lord_Howe", "UTC"])
def test_daily_job_has_one_time_per_day_of_a_year(zone: str) -> None:
    moment, found = datetime(2026, 1, 1, tzinfo=UTC), []
    for _ in range(365):
        moment = next_after("30 2 * * *", zone, moment)
        found.append(moment)
    hours = {(later - earlier).total_seconds() / 3600 for earlier, later in pairwise(found)}
    assert hours <= {23, 23.5, 24, 24.5, 25}


@pytest.mark.parametrize(
    ("expression", "zone"),
    [
        *(("", "UTC"), ("0 3 * *", "UTC"), ("0 0 3 * * *", "UTC"), ("@daily", "UTC"), ("61 * * * *", "UTC")),
        *(("R * * * *", "UTC"), ("H 3 * * *", "UTC"), ("0 0 30 2 *", "UTC"), ("0 3 * * noday", "UTC")),
        *(("0 3 * * *", "Mars/Base"), ("0 3 * * *", "../../etc/passwd"), ("0 3 * * *", "Europe"), ("0 3 * * *", "")),
    ],
)
def test_invalid_schedule_is_rejected_with_an_example(expression: str, zone: str) -> None:
    with pytest.raises(JobError, match=r"^Invalid schedule .* write them as in '0 3 \* \* \*' and 'Europe/Berlin'\.$"):
        next_after(expression, zone, datetime(2026, 1, 1, tzinfo=UTC))
