"""The gateway executes the planner's decisions: shares, caps, use and messages."""

from datetime import timedelta

import pytest
from gateway_parts import Gateway, add, add_team, settled
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from mlplatform_gateway.jobs.containment import JobErrors
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.jobs.states import State
from mlplatform_gateway.jobs.store import now
from mlplatform_gateway.queue import queueing
from mlplatform_gateway.queue.planner.queue import Rules
from mlplatform_gateway.queue.queueing import Queue
from mlplatform_gateway.usage.schema import UsageRow


async def once_at_work(idle: Gateway, running: set[str]) -> dict[str, JobRow]:
    """Start the control loop, which sees all jobs at once; wait until exactly these run, and return all by id."""
    async with idle.at_work():
        return await settled(idle, running)


async def test_team_within_its_share_precedes_earlier_job_of_borrower(idle: Gateway) -> None:
    await add_team(idle, "audio")
    await add_team(idle, "vision", share_cpus=4.0)
    await add(idle, "earlier", 4, "audio", "otto")
    await add(idle, "owed", 4, "vision", "alice")
    rows = await once_at_work(idle, {"owed"})
    assert "Team audio has no share of its own" in rows["earlier"].message


async def test_borrowed_attempt_is_recorded_as_such(idle: Gateway) -> None:
    await add_team(idle, "audio")
    await add_team(idle, "vision", share_cpus=1.0)
    await add(idle, "borrows", 2, "audio", "otto")
    await add(idle, "owned", 1, "vision", "alice")
    await once_at_work(idle, {"borrows", "owned"})
    with Session(idle.store.engine) as session:
        borrowed = {row.job_id: row.borrowed for row in session.scalars(select(UsageRow))}
    assert borrowed == {"borrows": True, "owned": False}


async def test_cap_keeps_job_waiting_while_resources_are_free(idle: Gateway) -> None:
    await add_team(idle, "vision", share_cpus=4.0, caps={"person": {"running": 1}})
    await add(idle, "first", 1, "vision", "alice")
    await add(idle, "second", 1, "vision", "alice")
    await add(idle, "other", 1, "vision", "bob")
    rows = await once_at_work(idle, {"first", "other"})
    assert rows["second"].message == "The job waits because alice runs 1 jobs, of at most 1."


async def test_team_whose_budget_is_used_gets_idle_resources_only(idle: Gateway) -> None:
    await add_team(idle, "vision", share_cpus=4.0, budget="0/month")
    await add_team(idle, "audio", share_cpus=1.0)
    await add(idle, "earlier", 3, "vision", "alice")
    await add(idle, "waits", 1, "vision", "alice")
    await add(idle, "owed", 1, "audio", "otto")
    rows = await once_at_work(idle, {"owed", "earlier"})
    sentence = "Team vision has used 0.0 of its 0 GPU hours of this month, so its jobs run on idle resources only until"
    assert sentence in rows["waits"].message
    with Session(idle.store.engine) as session:
        borrowed = {row.job_id: row.borrowed for row in session.scalars(select(UsageRow))}
    assert borrowed == {"earlier": True, "owed": False}
    assert sentence in await idle.logs.text("earlier")
    assert "GPU hours" not in await idle.logs.text("owed")


async def test_person_who_has_used_less_is_first_in_team(idle: Gateway) -> None:
    await add_team(idle, "vision", share_cpus=4.0)
    await add(idle, "former", 4, "vision", "alice")
    assert await idle.store.begin_attempt("former")
    await idle.store.request_stop("former")
    with Session(idle.store.engine) as session, session.begin():
        hour = int(timedelta(hours=1).total_seconds() * 1000)
        session.execute(update(UsageRow).values(began=UsageRow.began - hour, ended=UsageRow.began))
        session.execute(update(JobRow).values(ended=now(), state=State.STOPPED))
    await add(idle, "hers", 4, "vision", "alice")
    await add(idle, "his", 4, "vision", "bob")
    assert (await once_at_work(idle, {"his"}))["hers"].state == State.WAITING


async def test_jobs_of_shared_token_start_in_order_of_arrival(idle: Gateway) -> None:
    for number in range(6):
        await add(idle, f"job-{number}", 1)
    rows = await once_at_work(idle, {f"job-{number}" for number in range(4)})
    assert rows["job-4"].message == rows["job-5"].message
    assert rows["job-4"].message.startswith("The job waits for 1 CPU")


async def test_job_that_does_not_end_has_one_deadline(idle: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise others would wait for its room without end."""
    await add(idle, "stuck", 1)
    assert await idle.store.begin_attempt("stuck")
    await idle.store.request_stop("stuck")
    queue = Queue({}, idle.store.engine, JobErrors(), Rules())
    rows = await idle.store.open_jobs()
    active = [(job, attempt) for job in rows if (attempt := job.open_attempt)]
    (first,) = (await queue.view([], active, [])).running
    monkeypatch.setattr(queueing, "now", lambda: now() + timedelta(hours=1))
    (later,) = (await queue.view([], active, [])).running
    assert first.notice
    assert first.notice == later.notice
