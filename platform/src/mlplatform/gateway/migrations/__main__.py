"""`python -m mlplatform.gateway.migrations`: upgrade the gateway's database without starting the gateway."""

from __future__ import annotations

import sys

from mlplatform.errors import PlatformError
from mlplatform.gateway.database.engine import connect
from mlplatform.gateway.migrations.upgrade import upgrade
from mlplatform.settings.gateway import GatewaySettings

if __name__ == "__main__":
    try:
        upgrade(connect(GatewaySettings.load().database))
    except PlatformError as error:
        sys.exit(str(error))
