"""`python -m mlplatform_gateway.database.migrations`: upgrade the gateway's database without starting the gateway."""

from __future__ import annotations

import sys

from mlplatform.errors import PlatformError
from mlplatform_gateway.database.engine import connect
from mlplatform_gateway.database.migrations.upgrade import upgrade
from mlplatform_gateway.settings import GatewaySettings

if __name__ == "__main__":
    try:
        upgrade(connect(GatewaySettings.load().database))
    except PlatformError as error:
        sys.exit(str(error))
