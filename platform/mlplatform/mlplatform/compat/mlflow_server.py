"""Start of the MLflow server by a private name, as seen in mlflow 3.17.2."""

from __future__ import annotations

import os
import sys
from typing import Any

SERVE = (sys.executable, "-c", f"from {__name__} import serve; serve()")
"""`mlflow server` of the same interpreter, in one process."""


def serve() -> None:
    """Run `mlflow server` with the arguments of this process, and the server in it.

    `mlflow.server._exec_cmd`: MLflow starts uvicorn as a child, which first imports all of MLflow a second time.
    """
    import uvicorn  # first: by its presence, MLflow knows the process that serves, and checks host names in Flask, too
    from mlflow import cli, server

    def run(command: list[str], *, extra_env: dict[str, str], **_options: Any) -> None:
        os.environ.update(extra_env)
        uvicorn.main(command[command.index("uvicorn") + 1 :])

    vars(server)["_exec_cmd"] = run
    cli.server(sys.argv[1:])
