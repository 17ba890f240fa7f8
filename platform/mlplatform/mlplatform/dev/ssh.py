"""SSH into running jobs, with the OpenSSH of this machine: the gateway carries the connection over a WebSocket.

The token decides who may connect. The key only satisfies OpenSSH and editors, and the host key, which is made for each
connection, is not checked: what arrives there has passed the gateway.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from mlplatform.client.connection import Connection
from mlplatform.errors import AccessError, JobError, SettingsError, UnreachableError
from mlplatform.settings import proxies
from mlplatform.settings.job import settings

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

SUFFIX = ".mlplatform"
"""End of the host names that `config` is about: `JOB.mlplatform`, or `JOB+RANK.mlplatform`."""

_KEY = ".ssh/mlplatform"
"""The user's private key, below the home folder; `ssh-keygen` makes it once."""

_PART_BYTES = 1 << 16


def host(job_id: str, rank: int | None = None) -> str:
    """Return the host name of a job, or of a rank of its training, for OpenSSH."""
    return f"{job_id}{'' if rank is None else f'+{rank}'}{SUFFIX}"


def run(job_id: str, rank: int | None, command: Sequence[str]) -> None:
    """Execute `ssh`, with a shell or a command in the job; it does not return.

    Raises:
        SettingsError: OpenSSH is not installed.
    """
    os.execvp("ssh", [*invocation(job_id, rank), *command])  # noqa: S606 - the one of the user


def invocation(job_id: str, rank: int | None = None, *options: str) -> list[str]:
    """Return the command that connects to a job, or to a rank of its training; what follows runs there.

    Args:
        job_id: the job.
        rank: the rank; None for its entry point.
        options: further options of OpenSSH.

    Raises:
        SettingsError: OpenSSH is not installed.
    """
    if shutil.which("ssh") is None:
        raise SettingsError("The command ssh is missing here; install OpenSSH's client.")
    ours = [part for name, value in _options() for part in ("-o", f"{name}={value}")]
    return ["ssh", *ours, *options, host(job_id, rank)]


def config() -> str:
    """Return the entry of `~/.ssh/config` with which every SSH client and editor opens `JOB.mlplatform`."""
    job = settings()
    # An editor that a desktop has started has no variables of a terminal.
    variables = [
        f"RAY_ADDRESS={job.ray_address}",
        *([f"RAY_AUTH_TOKEN_PATH={job.token_file}"] if job.token_file else []),
    ]
    lines = [f"  {name} {value}" for name, value in _options(["env", *variables])]
    return "\n".join([f"Host *{SUFFIX}", *lines, ""])


def carry(name: str) -> None:
    """Carry the bytes of an SSH client between this process's stdin and stdout and the job; OpenSSH's `ProxyCommand`.

    Args:
        name: a host name that `host` has made.

    Raises:
        JobError: the job does not run, or has no such rank.
        AccessError: it is not one's own, or the token is rejected.
        UnreachableError: nothing answers at the gateway's address, or no longer.
    """
    from websockets.exceptions import ConnectionClosedError

    job_id, _, rank = name.removesuffix(SUFFIX).partition("+")
    with _connected(job_id, rank) as socket:
        threading.Thread(target=_send, args=(socket,), daemon=True).start()
        try:
            for part in socket:
                sys.stdout.buffer.write(part if isinstance(part, bytes) else part.encode())
                sys.stdout.buffer.flush()
        except ConnectionClosedError as error:
            raise UnreachableError("The gateway no longer answers, so the shell has ended; open it again.") from error


def _connected(job_id: str, rank: str) -> ClientConnection:
    from websockets.exceptions import InvalidStatus, WebSocketException
    from websockets.sync.client import connect

    address = settings().ray_address
    with Connection() as link:
        path = f"/platform/jobs/{quote(job_id, safe='')}/ssh"
        query = {"key": _public_key()} | ({"rank": rank} if rank else {})
        request = link.http.build_request("GET", path, params=query)
        if link.http.auth:
            request = next(link.http.auth.sync_auth_flow(request))
    try:
        return connect(
            f"ws{str(request.url).removeprefix('http')}",
            additional_headers={name: request.headers[name] for name in ("authorization",) if name in request.headers},
            proxy=True if proxies.uses_environment(address) else None,
            compression=None,
        )
    except InvalidStatus as error:
        text = error.response.body.decode(errors="replace").strip()
        kind = AccessError if error.response.status_code in (401, 403) else JobError
        raise kind(text or f"The gateway at {address} answers {error.response.status_code}.") from error
    except (OSError, WebSocketException) as error:
        reason = f"{address} does not answer ({error}); correct RAY_ADDRESS.{proxies.hint(address)}"
        raise UnreachableError(reason) from error


def _send(socket: ClientConnection) -> None:
    while part := os.read(0, _PART_BYTES):
        socket.send(part)
    socket.close()


def _options(before: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return the options of OpenSSH.

    Args:
        before: words before our command, such as `env` with variables.
    """
    proxy = shlex.join([*before, sys.executable, "-m", "mlplatform", "ssh", "--proxy"])
    return [
        ("User", "ray"),
        ("IdentityFile", f'"{Path.home() / _KEY}"'),
        ("IdentitiesOnly", "yes"),
        ("StrictHostKeyChecking", "no"),
        ("UserKnownHostsFile", "/dev/null"),
        ("LogLevel", "ERROR"),
        ("ServerAliveInterval", "15"),
        ("ProxyCommand", f"{proxy.replace('%', '%%')} %n"),
    ]


def _public_key() -> str:
    """Return the public key of this machine's user; OpenSSH reads the private one after the proxy has connected."""
    key = Path.home() / _KEY
    public = key.with_suffix(".pub")
    if not public.exists():
        key.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "mlplatform", "-f", str(key)]
        subprocess.run(made, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return " ".join(public.read_text().split()[:2])
