"""JupyterLab of one person, which ends when it is idle, `python -m mlplatform.services.notebook IDLE TOKEN_FILE`.

JupyterLab then ends with all kernels, terminals and other programs of the container, so that their memory and GPUs are
free. A small server takes over its port: it answers health checks, and refuses the requests of pages that are still
open in a browser. The first page that somebody opens starts JupyterLab again, without the operator.

Idle means that, for the whole time, no cell was executed, nobody typed and nothing was printed in a terminal, and all
programs, kernels included, computed next to nothing. Requests do not count: JupyterLab's pages send some every few
seconds for as long as they are open.
"""

from __future__ import annotations

import argparse
import os
import signal
import socketserver
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

import httpx

from mlplatform.durations import seconds_in, written

PORT = 8888

NEVER = "never"

COMMAND = (
    *("jupyter", "lab", "--ip=0.0.0.0", f"--port={PORT}", "--no-browser"),
    "--ServerApp.port_retries=0",  # another port is not published
)

_COMPUTING = 0.02
"""Part of one core's time above which programs count as used. A kernel that waits takes 0.001."""

_LONGEST_PAUSE_S = 30.0

_END_S = 30
"""Time for kernels and terminals to end."""

_PAGE = b"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>JupyterLab</title>
<noscript><meta http-equiv="refresh" content="15"></noscript></head>
<body><p>JupyterLab was idle and has ended. It starts again now; this page then opens it.</p>
<script>
setInterval(async () => {
  try { if ((await fetch("/api", {cache: "no-store"})).ok) location.reload(); } catch { /* not yet */ }
}, 1000);
</script></body></html>
"""


@dataclass(frozen=True)
class Use:
    """Use of JupyterLab as seen at one moment.

    Attributes:
        busy: a kernel executes a cell.
        last: time of the latest activity of a kernel or terminal, in seconds since 1970; 0 if there is none.
        cpu_s: CPU time of each process beside JupyterLab's own, in seconds, by process id.
    """

    busy: bool
    last: float
    cpu_s: dict[int, float]


class Idleness:
    """Time for which nobody has used JupyterLab, from the first look at it on."""

    def __init__(self) -> None:
        self._used = self._seen = 0.0
        self._cpu_s: dict[int, float] | None = None

    def seconds(self, use: Use, now: float) -> float:
        """Return the seconds without use, after a look at `now`, in seconds since 1970."""
        before, passed = self._cpu_s, now - self._seen
        self._cpu_s, self._seen = use.cpu_s, now
        spent = sum(max(0.0, cpu_s - (before or {}).get(pid, 0.0)) for pid, cpu_s in use.cpu_s.items())
        if before is None or use.busy or spent > _COMPUTING * passed:
            self._used = now
        self._used = max(self._used, min(use.last, now))
        return now - self._used


class Sleep(socketserver.TCPServer):
    """Server in the place of JupyterLab, until somebody opens a page.

    Args:
        port: port on all addresses; 0 for any.
    """

    allow_reuse_address = True

    def __init__(self, port: int) -> None:
        super().__init__(("", port), _Asleep)
        self.visited = False

    def wait(self) -> None:
        """Answer requests until one is for a page, then close the port."""
        with self:
            while not self.visited:
                self.handle_request()


class _Asleep(BaseHTTPRequestHandler):
    server: Sleep
    # A client that sends nothing holds up the others for this long.
    timeout = 5

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/api":  # health checks
            self._answer(200, "application/json", b'{"asleep": true}')
        elif path.startswith("/api/") or "text/html" not in self.headers.get("Accept", ""):
            self._answer(503, "text/plain", b"JupyterLab was idle and has ended; reload the page to start it.\n")
        else:
            self._answer(200, "text/html; charset=utf-8", _PAGE)
            self.server.visited = True

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in (("Content-Type", content_type), ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing: addresses of pages contain the token."""


def use_of(client: httpx.Client, cpu_s: dict[int, float]) -> Use | None:
    """Return the use of JupyterLab now; None if it does not answer, as while it starts.

    Args:
        client: client of its REST API.
        cpu_s: CPU time of its processes, by id.
    """
    try:
        kernels, terminals = (client.get(f"/api/{kind}").raise_for_status().json() for kind in ("kernels", "terminals"))
    except httpx.HTTPError:
        return None
    times = [datetime.fromisoformat(entry["last_activity"]).timestamp() for entry in (*kernels, *terminals)]
    return Use(any(kernel["execution_state"] == "busy" for kernel in kernels), max(times, default=0.0), cpu_s)


def cpu_seconds(without: set[int], proc: Path = Path("/proc")) -> dict[int, float]:
    """Return the CPU time of each process and its ended children, in seconds, by process id (proc(5), `stat`)."""
    found = {}
    tick = os.sysconf("SC_CLK_TCK")
    for pid in _processes(without, proc):
        with suppress(OSError):
            # The name of the program, in brackets, may contain spaces and brackets.
            fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
            found[pid] = sum(map(int, fields[11:15])) / tick
    return found


def main() -> int:
    """Run JupyterLab whenever it is needed; return its exit status if it failed."""
    parser = argparse.ArgumentParser(prog="python -m mlplatform.services.notebook")
    parser.add_argument("idle", help=f"time without use after which JupyterLab ends, such as 2h; {NEVER}")
    parser.add_argument("token_file", type=Path, help="file with its token")
    arguments = parser.parse_args()
    if os.getppid() != 1:
        parser.error("it ends all other programs, so it must be the only one of a container")
    signal.signal(signal.SIGTERM, _exit)
    idle_s = float("inf") if arguments.idle == NEVER else float(seconds_in(arguments.idle))
    while True:
        if status := _run(idle_s, arguments.token_file):
            return status
        print("JupyterLab has ended; the next visit of its page starts it.", flush=True)
        Sleep(PORT).wait()


def _run(idle_s: float, token_file: Path) -> int:
    """Run JupyterLab until it is idle or ends; return its exit status, 0 if it was idle."""
    jupyter = subprocess.Popen(COMMAND)
    token = {"Authorization": f"token {token_file.read_text().strip()}"}
    idleness = Idleness()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{PORT}", headers=token, timeout=10, trust_env=False) as client:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    return jupyter.wait(min(_LONGEST_PAUSE_S, idle_s / 4))
                use = use_of(client, cpu_seconds({1, os.getpid(), jupyter.pid}))
                if use and (idle := idleness.seconds(use, time.time())) >= idle_s:
                    print(f"JupyterLab was idle for {written(idle)}.", flush=True)
                    return 0
    finally:
        _end(jupyter)


def _end(jupyter: subprocess.Popen[bytes]) -> None:
    """End JupyterLab with its kernels and terminals, then all other programs."""
    jupyter.terminate()
    try:
        jupyter.wait(_END_S)
    except subprocess.TimeoutExpired:
        jupyter.kill()
        jupyter.wait()
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + 5
        others = _processes({1, os.getpid()})
        for pid in others:
            with suppress(OSError):
                os.kill(pid, number)
        while _processes({1, os.getpid()}) and time.monotonic() < deadline:
            time.sleep(0.1)


def _processes(without: set[int], proc: Path = Path("/proc")) -> list[int]:
    return [int(entry.name) for entry in proc.iterdir() if entry.name.isdigit() and int(entry.name) not in without]


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(main())
