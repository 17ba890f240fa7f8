"""`python -m mlplatform.gateway.migrations`: upgrade the gateway's database without starting the gateway."""

from __future__ import annotations

import asyncio
import sys

from mlplatform.errors import PlatformError
from mlplatform.gateway.jobs.store import JobStore
from mlplatform.gateway.migrations.upgrade import upgrade
from mlplatform.settings.gateway import GatewaySettings

if __name__ == "__main__":
    try:
        asyncio.run(upgrade(JobStore(GatewaySettings.load().database).engine))
    except PlatformError as error:
        sys.exit(str(error))
