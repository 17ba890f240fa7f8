"""Logs of a job in a folder."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from log_files import running

from mlplatform_gateway.logs.store import JobLogs


@pytest.fixture
async def logs(tmp_path: Path) -> AsyncIterator[JobLogs]:
    async with running(tmp_path) as found:
        yield found
