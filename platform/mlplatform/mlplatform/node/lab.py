"""JupyterLab in a running job, on a Unix socket that an SSH client forwards to a laptop.

`mlplatform dev open` starts it in an SSH session. It continues after that, and ends with the job.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from mlplatform.dev.lab import SOCKET, folder
from mlplatform.settings.job import settings

_START_SECONDS = 60.0


def main() -> None:
    """Print the token of the job's JupyterLab as soon as it answers, then wait until the client leaves."""
    if find_spec("jupyterlab") is None:
        sys.exit("JupyterLab is not installed where this job runs; use `mlplatform ssh`.")
    place = Path(folder(str(settings().job_id)))
    place.mkdir(mode=0o700, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _answers(place / SOCKET):
            _start(place)
    print((place / "token").read_text(), flush=True)
    sys.stdin.read()


def _start(place: Path) -> None:
    (place / SOCKET).unlink(missing_ok=True)
    token = secrets.token_urlsafe(32)
    (place / "token").write_text(token)
    options = {"sock": place / SOCKET, "sock_mode": "0600", "allow_remote_access": "True", "root_dir": Path.cwd()}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser"]
    with (place / "log").open("w") as log:
        lab = subprocess.Popen(
            [*command, *(f"--ServerApp.{name}={value}" for name, value in options.items())],
            env={**os.environ, "JUPYTER_TOKEN": token},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + _START_SECONDS
    while not _answers(place / SOCKET):
        if lab.poll() is not None or time.monotonic() > deadline:
            lab.kill()
            sys.exit(f"JupyterLab has not started:\n{(place / 'log').read_text()[-2000:]}")
        time.sleep(0.05)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(path))
        except OSError:
            return False
    return True


if __name__ == "__main__":
    main()
