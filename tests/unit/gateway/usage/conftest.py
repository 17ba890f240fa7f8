"""A clock for the store."""

import pytest
from held import Clock

from mlplatform_gateway.jobs import store as jobs_store


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The store's clock, which moves only when a test moves it."""
    clock = Clock()
    monkeypatch.setattr(jobs_store, "now", clock)
    return clock
