"""Bursts of submissions are accepted before their jobs start, and never prevent starts."""

from __future__ import annotations

import asyncio

import pytest
from gateway_parts import Gateway

from mlplatform_gateway.jobs import starting
from mlplatform_gateway.jobs.states import State


async def test_jobs_start_after_burst_was_accepted(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "_HOLD_SECONDS", 60.0)
    await gateway.started(submission_id="first")
    with gateway.reconciler.bursts.submission():
        await gateway.submit()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(gateway.until_state(State.RUNNING), 1)
    await gateway.until_state(State.RUNNING)


async def test_endless_submissions_do_not_prevent_starts(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "_HOLD_SECONDS", 0.1)
    with gateway.reconciler.bursts.submission():
        await gateway.started()
