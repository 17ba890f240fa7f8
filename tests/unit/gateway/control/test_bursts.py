"""Bursts of submissions are accepted before their jobs start, and never prevent starts."""

from __future__ import annotations

import asyncio

import pytest
from gateway_parts import Gateway

from mlplatform.gateway.control import bursts
from mlplatform.gateway.jobs.states import State


def test_jobs_start_after_burst_was_accepted(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bursts, "_HOLD_SECONDS", 60.0)

    async def first_runs() -> bool:
        return (await gateway.store.get("first")).state == State.RUNNING

    async def scenario() -> None:
        async with gateway.at_work():
            await gateway.submit(submission_id="first")
            await gateway.until(first_runs)
            with gateway.reconciler.bursts.submission():
                await gateway.submit()
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(gateway.until_state(State.RUNNING), 1)
            await gateway.until_state(State.RUNNING)

    asyncio.run(scenario())


def test_endless_submissions_do_not_prevent_starts(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bursts, "_HOLD_SECONDS", 0.1)

    async def scenario() -> None:
        async with gateway.at_work():
            with gateway.reconciler.bursts.submission():
                await gateway.submit()
                await gateway.until_state(State.RUNNING)

    asyncio.run(scenario())
