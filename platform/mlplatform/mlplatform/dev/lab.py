"""JupyterLab of a running job in a browser on this machine: OpenSSH forwards a port of loopback to it."""

from __future__ import annotations

import hashlib
import socket
import subprocess
import webbrowser

from mlplatform.dev import ssh
from mlplatform.errors import JobError

SOCKET = "sock"
"""Name of the socket in the folder of a job's JupyterLab."""


def folder(job_id: str) -> str:
    """Return the folder of a job's JupyterLab on its node; short, as addresses of Unix sockets have 107 characters."""
    return f"/tmp/mlplatform-lab-{hashlib.sha256(job_id.encode()).hexdigest()[:16]}"  # noqa: S108 - made with mode 0700


def open_page(job_id: str, *, browser: bool) -> None:
    """Forward a free port of loopback to the JupyterLab of a job, which starts if need be, until the user stops that.

    The page has a name of its own below `localhost`, so that its scripts get no cookie of another page.

    Args:
        job_id: a running job.
        browser: open the page, too.

    Raises:
        JobError: the job does not run, or JupyterLab did not start; OpenSSH has printed why.
    """
    port = _free_port()
    forward = f"127.0.0.1:{port}:{folder(job_id)}/{SOCKET}"
    command = ssh.invocation(job_id, None, "-T", "-o", "ExitOnForwardFailure=yes", "-L", forward)
    with subprocess.Popen(
        [*command, "exec python -m mlplatform.node.lab"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as tunnel:
        assert tunnel.stdout  # noqa: S101 - it is a pipe
        token = tunnel.stdout.readline().strip()
        if token:
            address = f"http://{_label(job_id)}.localhost:{port}/lab?token={token}"
            print(address)
            print("Press Ctrl-C to end the connection; kernels and terminals stay with the job.", flush=True)
            if browser:
                webbrowser.open(address)
        try:
            tunnel.wait()
        except KeyboardInterrupt:
            tunnel.terminate()
            return
    ended = f"The connection to job {job_id} has ended." if token else f"JupyterLab of job {job_id} cannot be opened."
    raise JobError(ended)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _label(job_id: str) -> str:
    """Return a job's id as a label of a name: letters, digits and inner dashes, 63 at most."""
    return "".join(letter if letter.isalnum() else "-" for letter in job_id.lower())[:63].strip("-") or "job"
