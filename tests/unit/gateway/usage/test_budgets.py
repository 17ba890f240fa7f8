"""Budgets of teams over a frozen ledger: periods, what counts, how old the sums are, and who is warned."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from held import BEGIN, Clock
from sqlalchemy import select
from sqlalchemy.orm import Session
from stored import LOST, SUCCEEDED, begin, do, end, submitted

from mlplatform_gateway.audit.store import PLATFORM
from mlplatform_gateway.jobs.store import JobStore
from mlplatform_gateway.notify.store import MessageRow
from mlplatform_gateway.people.store import People
from mlplatform_gateway.usage.budgets import STALE, Budget, Budgets, period_of

HOUR = 3600
WARNING = "Team vision has used 8.0 of its 10 GPU hours of this month."


def run(store: JobStore, job_id: str, gpus: int, person: str | None = "alice", team: str | None = "vision") -> None:
    """Begin a job."""
    job = submitted(submission_id=job_id, entrypoint_num_gpus=gpus)
    job.person, job.team = person, team
    do(store.add(job))
    begin(store, job_id)


def add_team(store: JobStore, budget: str, name: str = "vision") -> None:
    do(People(store.engine).add_team(name, {"budget": budget}, PLATFORM))


def read(budgets: Budgets, at: datetime, warn: bool = False) -> dict[str, Budget]:
    return do(budgets.read(do(People(budgets.engine).teams()), at, warn))


def used(store: JobStore, at: datetime, name: str = "vision") -> float:
    return read(Budgets(store.engine), at)[name].used


def warned(store: JobStore) -> list[tuple[str, str]]:
    """The person and the text of each message about a budget."""
    with Session(store.engine) as session:
        rows = session.scalars(select(MessageRow).where(MessageRow.event == "budget").order_by(MessageRow.person))
        return [(row.person, row.text) for row in rows]


@pytest.mark.parametrize(
    ("period", "at", "begin", "until"),
    [
        ("day", datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC), (2026, 12, 31), (2027, 1, 1)),
        ("day", datetime(2026, 3, 29, 1, tzinfo=timezone(timedelta(hours=2))), (2026, 3, 28), (2026, 3, 29)),
        ("week", datetime(2027, 1, 1, 12, tzinfo=UTC), (2026, 12, 28), (2027, 1, 4)),
        ("week", datetime(2026, 11, 30, tzinfo=UTC), (2026, 11, 30), (2026, 12, 7)),
        ("month", datetime(2028, 2, 29, 12, tzinfo=UTC), (2028, 2, 1), (2028, 3, 1)),
        ("month", datetime(2026, 12, 1, tzinfo=UTC), (2026, 12, 1), (2027, 1, 1)),
        ("month", datetime(2026, 1, 31, 23, tzinfo=UTC), (2026, 1, 1), (2026, 2, 1)),
    ],
)
def test_periods_are_those_of_utc(
    period: str, at: datetime, begin: tuple[int, int, int], until: tuple[int, int, int]
) -> None:
    assert period_of(period, at) == (datetime(*begin, tzinfo=UTC), datetime(*until, tzinfo=UTC))


def test_running_attempts_count_and_lost_ones_do_not(store: JobStore, clock: Clock) -> None:
    add_team(store, "10/month")
    run(store, "lost", 4)
    run(store, "ended", 2, "bob")
    clock.forward(HOUR)
    end(store, LOST, "lost")
    end(store, SUCCEEDED, "ended")
    run(store, "runs", 1)
    assert used(store, clock.time) == 2
    assert used(store, clock.forward(HOUR)) == 3


def test_other_teams_do_not_count(store: JobStore, clock: Clock) -> None:
    add_team(store, "10/month")
    add_team(store, "10/month", "default")
    run(store, "others", 1, "otto", "audio")
    run(store, "shared", 2, None, None)
    clock.forward(HOUR)
    assert used(store, clock.time) == 0
    assert used(store, clock.time, "default") == 2, "jobs of the shared token are of this team"


def test_team_without_budget_has_none(store: JobStore, clock: Clock) -> None:
    add_team(store, "")
    assert read(Budgets(store.engine), clock.time) == {}


@pytest.mark.parametrize("period", ["day", "week", "month"])
def test_running_attempt_counts_from_begin_of_next_period(period: str, store: JobStore, clock: Clock) -> None:
    add_team(store, f"10/{period}")
    _, until = period_of(period, BEGIN)
    clock.time = until - timedelta(hours=3)
    run(store, "long", 2)
    budgets = Budgets(store.engine)
    before = read(budgets, until - timedelta(seconds=1))["vision"]
    assert (round(before.used, 2), before.until) == (6, until)
    after = read(budgets, until)["vision"]
    assert (after.used, after.until) == (0, period_of(period, until)[1]), "the sums of the last period are not used"
    assert used(store, until + timedelta(hours=1)) == 2


def test_sums_are_read_again_after_a_minute(store: JobStore, clock: Clock) -> None:
    add_team(store, "10/month")
    run(store, "runs", 60)
    budgets = Budgets(store.engine)
    assert read(budgets, clock.time)["vision"].used == 0
    assert read(budgets, clock.time + STALE - timedelta(seconds=1))["vision"].used == 0
    assert read(budgets, clock.time + STALE)["vision"].used == 1
    do(People(store.engine).set_team("vision", {"budget": "1/month"}, PLATFORM))
    assert read(budgets, clock.time + STALE)["vision"].part == 1, "the budget itself is never old"


def test_leads_and_owners_of_open_jobs_are_warned_once(store: JobStore, clock: Clock) -> None:
    add_team(store, "10/month")
    for name, is_lead in (("lena", True), ("mia", False)):
        do(People(store.engine).add(name, PLATFORM, "vision", is_lead))
    for job_id, person in (("one", "alice"), ("two", "alice"), ("led", "lena")):
        run(store, job_id, 1, person)
    run(store, "done", 5, "bob")
    clock.forward(HOUR)
    end(store, SUCCEEDED, "done")
    assert read(Budgets(store.engine), clock.time - timedelta(seconds=1), warn=True)
    assert warned(store) == []
    assert read(Budgets(store.engine), clock.time)
    assert warned(store) == [], "lists do not warn"
    for _ in range(2):
        read(Budgets(store.engine), clock.time, warn=True)
        assert warned(store) == [("alice", WARNING), ("lena", WARNING)]


def test_two_looks_at_once_warn_once(store: JobStore, clock: Clock) -> None:
    """The control loop and the watcher both read budgets, each with rows from before the other's warning."""
    add_team(store, "1/day")
    run(store, "runs", 1)
    at, teams = clock.forward(HOUR), do(People(store.engine).teams())
    for _ in range(2):
        do(Budgets(store.engine).read(teams, at, warn=True))
    assert len(warned(store)) == 1
    do(People(store.engine).remove_team("vision", PLATFORM, 0, force=True))
    do(Budgets(store.engine).read(teams, at, warn=True))


def test_changed_budget_and_next_period_warn_again(store: JobStore, clock: Clock) -> None:
    add_team(store, "1/day")
    run(store, "runs", 1)
    read(Budgets(store.engine), clock.forward(HOUR), warn=True)
    do(People(store.engine).set_team("vision", {"weight": 2.0}, PLATFORM))
    read(Budgets(store.engine), clock.time, warn=True)
    assert len(warned(store)) == 1
    do(People(store.engine).set_team("vision", {"budget": "5/day"}, PLATFORM))
    read(Budgets(store.engine), clock.time, warn=True)
    assert len(warned(store)) == 1, "it is used by a fifth"
    read(Budgets(store.engine), clock.forward(3 * HOUR), warn=True)
    assert len(warned(store)) == 2
    read(Budgets(store.engine), clock.forward(24 * HOUR), warn=True)
    assert len(warned(store)) == 3


def test_sentence_says_what_follows_from_the_end_of_a_budget(store: JobStore, clock: Clock) -> None:
    add_team(store, "2/week")
    run(store, "runs", 2)
    found = read(Budgets(store.engine), clock.forward(1.5 * HOUR))["vision"]
    assert str(found) == (
        "Team vision has used 3.0 of its 2 GPU hours of this week, so its jobs run on idle resources only until "
        "2026-11-09 00:00 UTC."
    )
