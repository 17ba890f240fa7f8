"""A gateway that counts the starts of processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from started_gateway import StartedGateway


@pytest.fixture
def started(tmp_path: Path, closed_port: int, monkeypatch: pytest.MonkeyPatch) -> StartedGateway:
    """A gateway with the job `mine`, whose first attempt runs."""
    monkeypatch.setenv("MLPLATFORM_STORAGE", str(tmp_path / "storage"))
    gateway = StartedGateway(tmp_path, f"http://127.0.0.1:{closed_port}")
    gateway.add()
    return gateway
