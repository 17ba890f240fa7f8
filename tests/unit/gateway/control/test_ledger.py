"""Ends of attempts in the ledger, as Ray and the death of a node give them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from gateway_parts import Gateway, ray
from held import rows

from mlplatform.gateway.jobs.states import State
from mlplatform.gateway.usage.ledger import milliseconds


@pytest.mark.parametrize("end", [State.SUCCEEDED, State.FAILED], ids=["stored by Ray", "death of its node"])
async def test_attempt_is_held_until_its_end_in_ray(end: State, gateway: Gateway) -> None:
    """The end is before the attempt began, at which the ledger ends it."""
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    await gateway.started(metadata={"max_restarts_on_loss": "0"})
    if end == State.SUCCEEDED:
        gateway.head.jobs[gateway.head.submitted[0]] = ray("SUCCEEDED", end_time=milliseconds(long_ago))
    else:
        gateway.head.dead["n"] = long_ago
    await gateway.until_state(end)
    (row,) = rows(gateway.store)
    assert row.recorded is not None
    assert row.began == row.ended < row.recorded
    assert row.outcome == ("SUCCEEDED" if end == State.SUCCEEDED else "LOST")
