"""One SSH connection into a job, with OpenSSH's server; the agent of the node starts this with the connection as stdin.

The session has the environment and the folder of the job's process, and ends with it. What a client leaves running, as
editors do with their servers, stays until then.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from ctypes import CDLL
from pathlib import Path

from mlplatform.compat.ray_core import JOB_CONFIG
from mlplatform.contract import DEV
from mlplatform.node import processes, ssh_session

SERVER = "/usr/sbin/sshd"

_CONFIG = """\
HostKey {folder}/host
AuthorizedKeysFile {folder}/{client}
AuthenticationMethods publickey
ForceCommand {python} -IS {session} {folder}/job
Subsystem sftp {sftp}
StrictModes no
UsePAM no
UseDNS no
PidFile none
PrintMotd no
PrintLastLog no
ClientAliveInterval 15
"""

_CLIENT = "client"
"""File with the client's key, in the folder of a connection."""

_MEMORY = Path("/dev/shm")  # noqa: S108 - each connection has a folder of its own

_PR_SET_CHILD_SUBREAPER = 36


class _RefusedError(Exception):
    """The connection cannot be served; the message says why."""


def main(job_id: str, attempt: str, key: str, pid: str = "", gpus: str = "") -> None:
    """Serve the connection, then wait until nothing is left of the session.

    Args:
        job_id: id of the job.
        attempt: number of its attempt.
        key: the client's public key.
        pid: the process whose folder the session gets, and with which it ends; by default the entry point.
        gpus: indices of the GPUs that Ray has given the process since its start, with commas.
    """
    connection = socket.socket(fileno=0)
    connection.setblocking(True)
    try:
        if not Path(SERVER).exists():
            raise _RefusedError("Jobs of the embedded platform run on this machine: open a terminal instead.")
        first, environment = _entry_point(job_id, attempt)
        process = int(pid) if pid else first
        end = os.pidfd_open(process)
        folder = str(Path(f"/proc/{process}/cwd").readlink())
    except (OSError, _RefusedError) as error:
        text = f"{error}" if isinstance(error, _RefusedError) else f"The process of job {job_id} has just ended."
        _answer(connection, "409 Conflict", text)
        return
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = gpus
    # What the session leaves behind becomes a child of this process.
    CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # In memory: the environment has the token of the attempt.
    with tempfile.TemporaryDirectory(dir=_MEMORY, prefix=_prefix(job_id)) as place:
        server = _serve(connection, Path(place), key, {"environment": environment, "folder": folder})
        connection.close()
        # Not before the server runs: a job that ends meanwhile would leave it behind.
        threading.Thread(target=_end_with, args=(end,), daemon=True).start()
        _reap(server.pid, Path(place) / _CLIENT)


def connected(job_id: str) -> bool:
    """Return whether somebody is connected to a job on this node."""
    return any(_MEMORY.glob(f"{_prefix(job_id)}*/{_CLIENT}"))


def _prefix(job_id: str) -> str:
    """Return how the names of the folders of a job's connections begin."""
    return f"mlplatform-ssh-{job_id}-"


def _serve(connection: socket.socket, folder: Path, key: str, job: dict[str, object]) -> subprocess.Popen[bytes]:
    """Start the server with the connection."""
    subprocess.run(["/usr/bin/ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "host")], check=True)
    (folder / _CLIENT).write_text(key)
    (folder / "job").write_text(json.dumps(job))
    names = {"client": _CLIENT, "python": sys.executable, "session": ssh_session.__file__, "sftp": ssh_session.SFTP}
    (folder / "config").write_text(_CONFIG.format(folder=folder, **names))
    _answer(connection, "101 Switching Protocols")
    return subprocess.Popen(
        [SERVER, "-i", "-f", str(folder / "config")], stdin=connection.fileno(), stdout=connection.fileno()
    )


def _answer(connection: socket.socket, status: str, text: str = "") -> None:
    """Answer the HTTP request that asked for the connection."""
    kind = f"Content-Length: {len(text.encode())}" if text else "Upgrade: ssh"
    connection.sendall(
        f"HTTP/1.1 {status}\r\nConnection: {'close' if text else 'upgrade'}\r\n{kind}\r\n\r\n{text}".encode()
    )


def _entry_point(job_id: str, attempt: str) -> tuple[int, dict[str, str]]:
    """Return the process with the job's command, and its variables; where that is not, the attempt's first process."""
    found = []
    for process, variables in processes.of_job(job_id, int(attempt)):
        with suppress(OSError):
            # With warm start, the command has two processes, and in a dev environment only one is in its home.
            rank = (DEV not in variables, JOB_CONFIG not in variables, processes.ticks(process)[0])
            found.append((rank, process, variables))
    if not found:
        raise _RefusedError(f"Attempt {attempt} of job {job_id} has no process on this node; try again while it runs.")
    _, process, variables = min(found, key=lambda entry: entry[0])
    return process, variables


def _end_with(process: int) -> None:
    """Wait until the job's process has ended, then kill the session with all that it has started."""
    select.select([process], [], [])
    while children := _descendants(os.getpid()):
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        time.sleep(0.05)


def _descendants(parent: int) -> list[int]:
    found = []
    for children in Path(f"/proc/{parent}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, children.read_text().split()):
                found += [child, *_descendants(child)]
    return found


def _reap(server: int, key: Path) -> None:
    """Wait for the end of all children; without the key's file, nobody is connected any more."""
    with suppress(ChildProcessError):
        while True:
            if os.wait()[0] == server:
                key.unlink()


if __name__ == "__main__":
    main(*sys.argv[1:])
