"""Ends of attempts in the ledger, as Ray and the death of a node give them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from gateway_parts import Gateway, ray
from held import rows

from mlplatform.gateway.jobs.states import State
from mlplatform.gateway.usage.ledger import milliseconds


def held(gateway: Gateway, ray_after: dict[str, Any], died: datetime | None, state: State) -> tuple[int, str | None]:
    """Milliseconds that the first attempt of a job was held, and its outcome."""

    async def scenario() -> None:
        async with gateway.at_work():
            await gateway.submit(metadata={"max_restarts_on_loss": "0"})
            await gateway.until_state(State.RUNNING)
            (ray_submission_id,) = gateway.head.submitted
            gateway.head.jobs[ray_submission_id] = ray_after
            if died:
                gateway.head.dead["n"] = died
            await gateway.until_state(state)

    asyncio.run(scenario())
    (row,) = rows(gateway.store)
    assert row.ended is not None
    assert row.recorded is not None
    assert row.began <= row.ended < row.recorded
    return row.ended - row.began, row.outcome


@pytest.fixture
def long_ago() -> datetime:
    """A time before the attempt began, at which the ledger ends it."""
    return datetime.now(UTC) - timedelta(hours=1)


def test_attempt_is_held_until_the_end_that_ray_has_stored(gateway: Gateway, long_ago: datetime) -> None:
    details = ray("SUCCEEDED", end_time=milliseconds(long_ago))
    assert held(gateway, details, None, State.SUCCEEDED) == (0, "SUCCEEDED")


def test_attempt_is_held_until_the_death_of_its_node(gateway: Gateway, long_ago: datetime) -> None:
    assert held(gateway, ray("RUNNING"), long_ago, State.FAILED) == (0, "LOST")
