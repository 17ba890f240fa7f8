"""One SSH connection into a job, with OpenSSH's server; the agent of the node starts this with the connection as stdin.

The session has the environment and the folder of the job's process, and ends with it. What a client leaves running, as
editors do with their servers, stays until then.
"""

from __future__ import annotations

import json
import os
import re
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

from mlplatform.node import ssh_session
from mlplatform_warm.ray.setup_worker import CONTEXT

SERVER = "/usr/sbin/sshd"

_CONFIG = """\
HostKey {folder}/host
AuthorizedKeysFile {folder}/client
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
        first = _first_process(job_id, attempt)
        process = int(pid) if pid else first
        end = os.pidfd_open(process)
        environment, folder = _environment(first), str(Path(f"/proc/{process}/cwd").readlink())
    except (OSError, _RefusedError) as error:
        text = f"{error}" if isinstance(error, _RefusedError) else f"The process of job {job_id} has just ended."
        _answer(connection, "409 Conflict", text)
        return
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = gpus
    # What the session leaves behind becomes a child of this process.
    CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # In memory: the environment has the token of the attempt.
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="mlplatform-ssh-") as place:
        _serve(connection, Path(place), key, {"environment": environment, "folder": folder})
        connection.close()
        # Not before the server runs: a job that ends meanwhile would leave it behind.
        threading.Thread(target=_end_with, args=(end,), daemon=True).start()
        _reap()


def _serve(connection: socket.socket, folder: Path, key: str, job: dict[str, object]) -> None:
    """Start the server with the connection."""
    subprocess.run(["/usr/bin/ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "host")], check=True)
    (folder / "client").write_text(key)
    (folder / "job").write_text(json.dumps(job))
    names = {"python": sys.executable, "session": ssh_session.__file__, "sftp": ssh_session.SFTP}
    (folder / "config").write_text(_CONFIG.format(folder=folder, **names))
    _answer(connection, "101 Switching Protocols")
    subprocess.Popen(
        [SERVER, "-i", "-f", str(folder / "config")], stdin=connection.fileno(), stdout=connection.fileno()
    )


def _answer(connection: socket.socket, status: str, text: str = "") -> None:
    """Answer the HTTP request that asked for the connection."""
    kind = f"Content-Length: {len(text.encode())}" if text else "Upgrade: ssh"
    connection.sendall(
        f"HTTP/1.1 {status}\r\nConnection: {'close' if text else 'upgrade'}\r\n{kind}\r\n\r\n{text}".encode()
    )


def _first_process(job_id: str, attempt: str) -> int:
    """Return the process of an attempt on this node that was started first: the shell with its command, if it is here.

    Forks of a template of warm start have the environment of that, but for each there is also a process of the attempt.
    """
    wanted = {("MLPLATFORM_JOB_ID", job_id), ("MLPLATFORM_ATTEMPT", attempt)}
    found = []
    for process in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        # It may end meanwhile, and a command line is anybody's text.
        with suppress(OSError, ValueError, TypeError, AttributeError):
            if wanted <= _environment(process).items():
                started = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[19]
                found.append((int(started), process))
    if not found:
        raise _RefusedError(f"Attempt {attempt} of job {job_id} has no process on this node; try again while it runs.")
    return min(found)[1]


def _environment(process: int) -> dict[str, str]:
    """Return the variables of a process, with those that a worker of Ray takes from its command line."""
    words, variables = _read(process, "cmdline"), _read(process, "environ")
    found = dict(variable.split("=", 1) for variable in variables if "=" in variable)
    context = next((word.removeprefix(CONTEXT) for word in words if word.startswith(CONTEXT)), "{}")
    for name, value in (json.loads(context).get("env_vars") or {}).items():
        found[name] = re.sub(r"\$\{([A-Z0-9_]+)\}", lambda match: found.get(match[1], ""), value)
    return found


def _read(process: int, name: str) -> list[str]:
    return Path(f"/proc/{process}/{name}").read_bytes().decode(errors="surrogateescape").split("\0")


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


def _reap() -> None:
    """Wait for the end of all children."""
    with suppress(ChildProcessError):
        while True:
            os.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
