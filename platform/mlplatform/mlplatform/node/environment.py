"""Entry point of a dev environment: it holds the resources of a job until nobody uses them, or others need them.

People work in it over SSH (`mlplatform.node.ssh`), so that Ray's SIGTERM reaches this process only, and what they have
started gets the whole grace period.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from mlplatform.client.request import plain_name
from mlplatform.contract import DEV, DEV_READY
from mlplatform.node import home, processes, ssh
from mlplatform.settings.job import settings
from mlplatform.storage import notice
from mlplatform.text.durations import in_words

_WATCH_SECONDS = 60.0

_BUSY = 0.03
"""Part of one CPU, on average, above which a computation runs; JupyterLab without a page needs a tenth of it."""


def main(*stage: str) -> None:
    """Begin again in the home of the owner, with its variables, which sessions get; then wait until the end."""
    if not stage and home.HOMES.is_dir():
        folder = home.prepare(plain_name(settings().user))
        os.chdir(folder)
        command = [sys.executable, "-m", "mlplatform.node.environment", "in-home"]
        os.execve(sys.executable, command, os.environ | home.variables(folder) | {DEV: "1"})  # noqa: S606
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    print(f"{DEV_READY} {socket.gethostname()}, attempt {settings().attempt}", flush=True)
    idle_s, use, used = settings().idle_s or float("inf"), Use(), time.monotonic()
    while time.monotonic() - used < idle_s:
        if signal.sigtimedwait({signal.SIGTERM}, min(_WATCH_SECONDS, idle_s / 4)):
            _leave()
            return
        if use.seen():
            used = time.monotonic()
    print(f"The dev environment ends, because nobody has used it for {in_words(idle_s)}.", flush=True)


class Use:
    """Use of this environment: somebody is connected, or something computes."""

    def __init__(self) -> None:
        self._times, self._looked = self._cpu_ticks(), time.monotonic()

    def seen(self) -> bool:
        """Return whether the environment is used now, or has computed since the last call."""
        before, self._times = self._times, self._cpu_ticks()
        spent = sum(ticks - before.get(process, 0) for process, ticks in self._times.items())
        last, self._looked = self._looked, time.monotonic()
        busy = spent / os.sysconf("SC_CLK_TCK") > _BUSY * (self._looked - last)
        return busy or ssh.connected(str(settings().job_id))

    def _cpu_ticks(self) -> dict[tuple[int, int], int]:
        """Return the CPU time of each process, by its id and its start."""
        found = {}
        for process, _ in processes.of_job(str(settings().job_id), settings().attempt):
            with suppress(OSError):
                started, ticks = processes.ticks(process)
                found[process, started] = ticks
        return found


def _leave() -> None:
    """Return at once if the job was stopped; if others need its resources, say so, and stay as long as it may."""
    given = notice.received() if notice.applies() else None
    if given is None:
        return
    until = datetime.fromtimestamp(given.deadline, UTC)
    _tell(f"This dev environment ends at {until:%H:%M:%S} UTC; save your files. {given.why}")
    while (left := given.deadline - time.time()) > 0:
        signal.sigtimedwait({signal.SIGTERM}, left)  # it is repeated


def _tell(text: str) -> None:
    """Write a line to the job's log and to all terminals of the environment."""
    print(text, flush=True)
    for terminal in _terminals():
        with suppress(OSError):
            file = os.open(terminal, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
            try:
                os.write(file, f"\r\n*** {text}\r\n".encode())
            finally:
                os.close(file)


def _terminals() -> set[str]:
    found = set()
    for process, _ in processes.of_job(str(settings().job_id), settings().attempt):
        with suppress(OSError):
            found.add(str(Path(f"/proc/{process}/fd/0").readlink()))
    return {name for name in found if name.startswith("/dev/pts/")}


if __name__ == "__main__":
    main(*sys.argv[1:])
