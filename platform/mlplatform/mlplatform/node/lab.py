"""JupyterLab in a running job, on a Unix socket to which the gateway forwards its pages.

The gateway starts it in an SSH session. It continues after that, and ends with the job.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import select
import socket
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from mlplatform.settings.job import settings

_START_SECONDS = 60.0


def main() -> None:
    """Print socket and token of the job's JupyterLab as soon as it answers; wait for its end, or that of the client."""
    found = find_spec("jupyterlab")
    if found is None or found.origin is None:
        sys.exit("JupyterLab is not installed where this job runs; use `mlplatform ssh`.")
    # Short, as addresses of Unix sockets have at most 107 characters.
    job = hashlib.sha256(str(settings().job_id).encode()).hexdigest()[:16]
    place = Path(f"/tmp/mlplatform-lab-{job}")  # noqa: S108 - made with mode 0700
    place.mkdir(mode=0o700, exist_ok=True)
    path, state = place / "socket", place / "state"
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _answers(path):
            _start(place, path, state, Path(found.origin).parents[4])
    running = json.loads(state.read_text())
    print(json.dumps(running), flush=True)
    with suppress(ProcessLookupError):
        select.select([sys.stdin, os.pidfd_open(running["pid"])], [], [])


def _start(place: Path, path: Path, state: Path, prefix: Path) -> None:
    path.unlink(missing_ok=True)
    token = secrets.token_urlsafe(32)
    options = {"sock": path, "sock_mode": "0600", "allow_remote_access": True, "root_dir": Path.cwd()}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser"]
    # It would look for its extensions and settings beside the Python of the home.
    shared, config = prefix / "share/jupyter", prefix / "etc/jupyter"
    places = {"JUPYTER_PATH": shared, "JUPYTER_CONFIG_PATH": config, "JUPYTERLAB_DIR": shared / "lab"}
    with (place / "log").open("w") as log:
        lab = subprocess.Popen(
            [*command, *(f"--ServerApp.{name}={value}" for name, value in options.items())],
            env={**os.environ, **{name: str(path) for name, path in places.items()}, "JUPYTER_TOKEN": token},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    state.write_text(json.dumps({"socket": str(path), "token": token, "pid": lab.pid}))
    deadline = time.monotonic() + _START_SECONDS
    while not _answers(path):
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
