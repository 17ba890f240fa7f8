"""The gateway executes the planner's decisions: shares, caps, use and messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from gateway_parts import Gateway
from queued import add, add_team, settled
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from mlplatform.gateway.control import starting
from mlplatform.gateway.jobs.schema import JobRow
from mlplatform.gateway.jobs.states import State
from mlplatform.gateway.jobs.store import now
from mlplatform.gateway.usage.schema import UsageRow
from mlplatform.scheduling.queue import View


def outcome(gateway: Gateway, prepare: Callable[[], Any], running: set[str]) -> dict[str, JobRow]:
    async def scenario() -> dict[str, JobRow]:
        await prepare()
        async with gateway.at_work():
            return await settled(gateway, running)

    return asyncio.run(scenario())


def test_team_within_its_share_precedes_earlier_job_of_borrower(gateway: Gateway) -> None:
    async def prepare() -> None:
        await add_team(gateway, "audio")
        await add_team(gateway, "vision", share_cpus=4.0)
        await add(gateway, "earlier", 4, "audio", "otto")
        await add(gateway, "owed", 4, "vision", "alice")

    rows = outcome(gateway, prepare, {"owed"})
    assert "team audio would hold 4 CPUs of its share of nothing" in rows["earlier"].message


def test_borrowed_attempt_is_recorded_as_such(gateway: Gateway) -> None:
    async def prepare() -> None:
        await add_team(gateway, "audio")
        await add_team(gateway, "vision", share_cpus=1.0)
        await add(gateway, "borrows", 2, "audio", "otto")
        await add(gateway, "owned", 1, "vision", "alice")

    outcome(gateway, prepare, {"borrows", "owned"})
    with Session(gateway.store.engine) as session:
        borrowed = {row.job_id: row.borrowed for row in session.scalars(select(UsageRow))}
    assert borrowed == {"borrows": True, "owned": False}


def test_cap_keeps_job_waiting_while_resources_are_free(gateway: Gateway) -> None:
    async def prepare() -> None:
        await add_team(gateway, "vision", share_cpus=4.0, caps={"person": {"running": 1}})
        await add(gateway, "first", 1, "vision", "alice")
        await add(gateway, "second", 1, "vision", "alice")
        await add(gateway, "other", 1, "vision", "bob")

    rows = outcome(gateway, prepare, {"first", "other"})
    assert rows["second"].message == "The job waits because alice runs 1 jobs, of at most 1."


def test_person_who_has_used_less_is_first_in_team(gateway: Gateway) -> None:
    async def prepare() -> None:
        await add_team(gateway, "vision", share_cpus=4.0)
        await add(gateway, "former", 4, "vision", "alice")
        assert await gateway.store.begin_attempt("former")
        await gateway.store.request_stop("former")
        with Session(gateway.store.engine) as session, session.begin():
            hour = int(timedelta(hours=1).total_seconds() * 1000)
            session.execute(update(UsageRow).values(began=UsageRow.began - hour, ended=UsageRow.began))
            session.execute(update(JobRow).values(ended=now(), state=State.STOPPED))
        await add(gateway, "hers", 4, "vision", "alice")
        await add(gateway, "his", 4, "vision", "bob")

    assert outcome(gateway, prepare, {"his"})["hers"].state == State.WAITING


def test_jobs_of_shared_token_start_in_order_of_arrival(gateway: Gateway) -> None:
    async def prepare() -> None:
        for number in range(6):
            await add(gateway, f"job-{number}", 1)

    rows = outcome(gateway, prepare, {f"job-{number}" for number in range(4)})
    assert rows["job-4"].message == rows["job-5"].message
    assert rows["job-4"].message.startswith("The job waits for 1 CPU")


def test_jobs_start_even_if_plan_does_not_settle(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unsettled(view: View) -> None:
        raise RuntimeError("The plan still changes.")

    monkeypatch.setattr(starting, "plan", unsettled)
    outcome(gateway, lambda: add(gateway, "mine", 1), {"mine"})
    assert "The plan still changes. Only its first pass is executed." in caplog.text
