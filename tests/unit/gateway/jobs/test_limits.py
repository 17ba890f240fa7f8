"""A job that has reached its time limit ends when another waits for what it holds, and not before."""

from dataclasses import replace
from datetime import timedelta

import pytest
from gateway_parts import NODE, Gateway, add_team, settled
from sqlalchemy import update
from sqlalchemy.orm import Session

from mlplatform_gateway.jobs.decisions import Decisions
from mlplatform_gateway.jobs.schema import AttemptRow
from mlplatform_gateway.jobs.states import Outcome, State
from mlplatform_gateway.jobs.store import now
from mlplatform_gateway.queue.planner.plan import forecast
from mlplatform_gateway.queue.planner.queue import Preempt, Rules

GRACE_S = 30.0
LIMIT_S = 3600.0
IN_USE = replace(NODE, free={"CPU": 0.0})


@pytest.fixture
def rules() -> Rules:
    return Rules(grace_s=GRACE_S)


async def add(gateway: Gateway, job_id: str, cpus: float = 4.0, **metadata: str) -> None:
    """Submit a job that takes the whole node."""
    await gateway.submit(submission_id=job_id, entrypoint_num_cpus=cpus, metadata=metadata)


async def begun(gateway: Gateway, age: float, **metadata: str) -> None:
    """Start the job `limited`, as if that was some seconds ago."""
    await add(gateway, "limited", time_limit="1h", **metadata)
    await settled(gateway, {"limited"})
    gateway.head.node = IN_USE
    with Session(gateway.store.engine) as session, session.begin():
        session.execute(update(AttemptRow).values(created=now() - timedelta(seconds=age)))


async def test_job_at_its_limit_fails_when_another_waits(gateway: Gateway) -> None:
    await begun(gateway, LIMIT_S + 1, max_restarts_on_failure="3", max_restarts_on_loss="3")
    await add(gateway, "next")
    job = await gateway.until_state(State.FAILED, "limited")
    gateway.head.node = NODE
    await settled(gateway, {"next"})
    log = await gateway.logs.text("limited")
    sentence = "The job reached its limit of 1 h; `mlplatform resume` continues it, if needed with a higher --limit."
    assert job.message == sentence
    (attempt,) = job.attempts
    assert (attempt.outcome, attempt.claimant) == (Outcome.FAILED, "")
    assert "The job has reached its limit, and next" in str(attempt.reason)
    assert (job.preemptions, job.losses) == (0, 0)
    assert "to save its state. The job has reached its limit" in log
    assert sentence in log


@pytest.mark.parametrize(
    ("age", "cpus"),
    [(LIMIT_S - 600, 4.0), (LIMIT_S + 1, 5.0)],
    ids=["before its limit", "while only a job waits that fits beside nothing"],
)
async def test_job_stays(age: float, cpus: float, gateway: Gateway) -> None:
    await begun(gateway, age)
    await add(gateway, "next", cpus)
    rows = await settled(gateway, {"limited"})
    assert rows["limited"].attempts[0].leave_by is None


async def test_job_that_ends_in_time_after_the_notice_succeeds(gateway: Gateway) -> None:
    gateway.head.ignores_stop = True
    await begun(gateway, LIMIT_S + 1)
    await add(gateway, "next")
    await gateway.until_job(lambda job: job.attempts[0].leave_by is not None, "limited")
    for details in gateway.head.jobs.values():
        details["status"] = "SUCCEEDED"
    job = await gateway.until_state(State.SUCCEEDED, "limited")
    assert job.attempts[0].outcome == Outcome.SUCCEEDED


async def test_borrower_with_a_limit_continues_after_it_has_left(idle: Gateway) -> None:
    """The limit ends a job only if it was the reason of the notice, however late the attempt then ends."""
    await add(idle, "limited", time_limit="1h")
    await idle.store.begin_attempt("limited")
    await Decisions(idle.store.engine).preempt(
        Preempt("limited", now().timestamp(), "owed", "Team vision takes it back.")
    )
    with Session(idle.store.engine) as session, session.begin():
        session.execute(update(AttemptRow).values(created=now() - timedelta(seconds=LIMIT_S + 1)))
    async with idle.at_work():
        left = await idle.until_left("limited")
    assert left.attempts[0].outcome == Outcome.PREEMPTED


@pytest.mark.parametrize("teams", [0, 2])
async def test_limits_of_running_jobs_promise_a_latest_start(teams: int, gateway: Gateway) -> None:
    for number in range(teams):
        await add_team(gateway, f"team-{number}")
    await begun(gateway, 600)
    began = (await gateway.store.get("limited")).attempts[0].created.timestamp()
    await add(gateway, "next", time_limit="2h")
    await settled(gateway, {"limited"})
    view = gateway.reconciler.starter.view
    assert view
    (waiting,) = view.waiting
    assert forecast(view)[waiting.id] == pytest.approx(began + LIMIT_S + GRACE_S + 60, abs=1)
    assert waiting.limit_s == 2 * LIMIT_S
