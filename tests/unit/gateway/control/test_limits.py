"""A job that has reached its time limit ends when another waits for what it holds, and not before."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from gateway_parts import NODE, Gateway
from queued import add_team, settled
from sqlalchemy import update
from sqlalchemy.orm import Session

from mlplatform.gateway.jobs.notices import Notices
from mlplatform.gateway.jobs.schema import AttemptRow, JobRow
from mlplatform.gateway.jobs.states import Outcome, State
from mlplatform.gateway.jobs.store import now
from mlplatform.gateway.jobs.submission import Submission
from mlplatform.scheduling.forecast import forecast
from mlplatform.scheduling.queue import Preempt, Rules

GRACE_S = 30.0
LIMIT_S = 3600.0
IN_USE = replace(NODE, free={"CPU": 0.0})


@pytest.fixture
def rules() -> Rules:
    return Rules(grace_s=GRACE_S)


async def add(gateway: Gateway, job_id: str, **metadata: str) -> None:
    """Submit a job that takes the whole node."""
    fields = {"entrypoint": "true", "submission_id": job_id, "entrypoint_num_cpus": 4.0, "metadata": metadata}
    await gateway.store.add(Submission.model_validate(fields).job())


async def begun(gateway: Gateway, age: float, **metadata: str) -> None:
    """Start the job `limited`, as if that was some seconds ago."""
    await add(gateway, "limited", time_limit="1h", **metadata)
    await settled(gateway, {"limited"})
    gateway.head.node = IN_USE
    with Session(gateway.store.engine) as session, session.begin():
        session.execute(update(AttemptRow).values(created=now() - timedelta(seconds=age)))


async def ended(gateway: Gateway) -> JobRow:
    async def final() -> bool:
        return State((await gateway.store.get("limited")).state).final

    await gateway.until(final)
    return await gateway.store.get("limited")


def test_job_at_its_limit_fails_when_another_waits(gateway: Gateway) -> None:
    async def scenario() -> tuple[JobRow, str]:
        async with gateway.at_work():
            await begun(gateway, LIMIT_S + 1, max_restarts_on_failure="3", max_restarts_on_loss="3")
            await add(gateway, "next")
            job = await ended(gateway)
            gateway.head.node = NODE
            await settled(gateway, {"next"})
            return job, await gateway.logs.text("limited")

    job, log = asyncio.run(scenario())
    sentence = "The job reached its limit of 1 h; `mlplatform resume` continues it, if needed with a higher --limit."
    assert (job.state, job.message) == (State.FAILED, sentence)
    (attempt,) = job.attempts
    assert (attempt.outcome, attempt.claimant) == (Outcome.FAILED, "")
    assert "The job has reached its limit, and next" in str(attempt.reason)
    assert (job.preemptions, job.losses) == (0, 0)
    assert "to save its state. The job has reached its limit" in log
    assert sentence in log


def test_job_before_its_limit_stays(gateway: Gateway) -> None:
    async def scenario() -> None:
        async with gateway.at_work():
            await begun(gateway, LIMIT_S - 600)
            await add(gateway, "next")
            rows = await settled(gateway, {"limited"})
            assert rows["limited"].attempts[0].leave_by is None

    asyncio.run(scenario())


def test_job_at_its_limit_runs_on_while_no_job_waits(gateway: Gateway) -> None:
    async def scenario() -> None:
        async with gateway.at_work():
            await begun(gateway, LIMIT_S + 1)
            # It fits beside nothing, and no job leaving would help it.
            fields = {"entrypoint": "true", "submission_id": "never", "entrypoint_num_cpus": 5.0}
            await gateway.store.add(Submission.model_validate(fields).job())
            rows = await settled(gateway, {"limited"})
            assert rows["limited"].attempts[0].leave_by is None

    asyncio.run(scenario())


def test_job_that_ends_in_time_after_the_notice_succeeds(gateway: Gateway) -> None:
    async def scenario() -> JobRow:
        async with gateway.at_work():
            gateway.head.ignores_stop = True
            await begun(gateway, LIMIT_S + 1)
            await add(gateway, "next")

            async def asked() -> bool:
                return (await gateway.store.get("limited")).attempts[0].leave_by is not None

            await gateway.until(asked)
            for details in gateway.head.jobs.values():
                details["status"] = "SUCCEEDED"
            return await ended(gateway)

    job = asyncio.run(scenario())
    assert (job.state, job.attempts[0].outcome) == (State.SUCCEEDED, Outcome.SUCCEEDED)


def test_borrower_with_a_limit_continues_after_it_has_left(gateway: Gateway) -> None:
    """The limit ends a job only if it was the reason of the notice, however late the attempt then ends."""

    async def scenario() -> JobRow:
        await add(gateway, "limited", time_limit="1h")
        await gateway.store.begin_attempt("limited")
        await Notices(gateway.store.engine).preempt(
            Preempt("limited", now().timestamp(), "owed", "Team vision takes it back.")
        )
        with Session(gateway.store.engine) as session, session.begin():
            session.execute(update(AttemptRow).values(created=now() - timedelta(seconds=LIMIT_S + 1)))
        async with gateway.at_work():

            async def left() -> bool:
                return (await gateway.store.get("limited")).preemptions == 1

            await gateway.until(left)
        return await gateway.store.get("limited")

    assert asyncio.run(scenario()).attempts[0].outcome == Outcome.PREEMPTED


@pytest.mark.parametrize("limit", [None, "1h"])
def test_attempt_with_limit_gets_time_to_save(limit: str | None, gateway: Gateway) -> None:
    async def scenario() -> None:
        await add(gateway, "mine", **({"time_limit": limit} if limit else {}))
        async with gateway.at_work():
            await settled(gateway, {"mine"})

    asyncio.run(scenario())
    (request,) = gateway.head.requests
    variables = request["runtime_env"]["env_vars"]
    expected = {"MLPLATFORM_GRACE_SECONDS": "30", "RAY_JOB_STOP_WAIT_TIME_S": "30"} if limit else {}
    assert {name: value for name, value in variables.items() if name in expected or "GRACE" in name} == expected


@pytest.mark.parametrize("teams", [0, 2])
def test_limits_of_running_jobs_promise_a_latest_start(teams: int, gateway: Gateway) -> None:
    async def scenario() -> tuple[float | None, float, float | None]:
        for number in range(teams):
            await add_team(gateway, f"team-{number}")
        async with gateway.at_work():
            await begun(gateway, 600)
            began = (await gateway.store.get("limited")).attempts[0].created.timestamp()
            await add(gateway, "next", time_limit="2h")
            await settled(gateway, {"limited"})
            view = gateway.reconciler.starter.view
            assert view
            (waiting,) = view.waiting
            return forecast(view)[waiting.id], began, waiting.limit_s

    latest, began, limit_s = asyncio.run(scenario())
    assert latest == pytest.approx(began + LIMIT_S + GRACE_S + 60, abs=1)
    assert limit_s == 2 * LIMIT_S
