"""Entry point `python -m mlplatform_gateway`: serve on port 8265."""

from __future__ import annotations

import logging
import sys

import uvicorn

from mlplatform.errors import PlatformError
from mlplatform_gateway.app import create_app
from mlplatform_gateway.compat.uvicorn_h11 import BoundedHeaders
from mlplatform_gateway.database.engine import connect
from mlplatform_gateway.database.migrations.upgrade import upgrade
from mlplatform_gateway.settings import GatewaySettings

_STOP_SECONDS = 5

_CONNECTIONS = 5000
"""At the same time; each takes 18 KiB of 768 MiB, and a descriptor of 20,000. Further requests get status 503."""

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for library in ("httpx", "asyncssh"):
        logging.getLogger(library).setLevel(logging.WARNING)
    config = GatewaySettings.load()
    try:
        upgrade(connect(config.database))
    except PlatformError as error:
        sys.exit(str(error))  # in one line: those who start the platform are shown the last one of the log
    uvicorn.run(
        create_app(config),
        host=config.listen,
        port=config.port,
        http=BoundedHeaders,
        limit_concurrency=_CONNECTIONS,
        access_log=False,
        server_header=False,
        # Otherwise a client on 127.0.0.1 could choose the address that the head logs.
        proxy_headers=False,
        timeout_graceful_shutdown=_STOP_SECONDS,
        log_config=None,
    )
