"""Restart of the embedded platform's programs when they end: `python -m mlplatform.local.supervisor HOME INSTANCE`.

One process per instance, the counterpart of a container restart policy. It runs until `down` ends it, or until the
state no longer names it.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path

from mlplatform.local import processes, programs
from mlplatform.local.instance import Home, Instance
from mlplatform.local.processes import Process, is_alive

NAME = "supervisor"

_LOOK_SECONDS = 0.5

_SOON_SECONDS = 20.0
"""A program that ends this soon after its start is restarted with increasing delays."""

_FIRST_DELAY_S, _MAX_DELAY_S = 1.0, 30.0

_log = logging.getLogger(__name__)


class Supervisor:
    """Supervisor of the programs of one instance."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._not_before: dict[str, float] = {}
        self._delay: dict[str, float] = {}

    def look(self, instance: Instance) -> None:
        """Restart the programs that have ended, at most one start per name."""
        for name in programs.PROGRAMS:
            process = instance.process(name)
            if process is None or is_alive(process) or time.monotonic() < self._not_before.get(name, 0.0):
                continue
            instance = self._restart(instance, process)

    def _restart(self, instance: Instance, process: Process) -> Instance:
        name = process.name
        ran = time.time() - process.created
        delay = min(self._delay.get(name, 0.0) * 2 or _FIRST_DELAY_S, _MAX_DELAY_S) if ran < _SOON_SECONDS else 0.0
        self._delay[name] = delay
        self._not_before[name] = time.monotonic() + delay
        _log.warning("%s (process %d) ended after %.0f s; restarting it.", name, process.pid, ran)
        self._clear(instance, process)
        restarted = instance.with_process(programs.start(name, self._home, instance))
        self._home.save(restarted)
        return restarted

    def _clear(self, instance: Instance, process: Process) -> None:
        """End what the program has left behind; drivers of jobs and their children go with Ray."""
        if process.name == "ray":
            others = [other for other in instance.processes if other != process]
            processes.end(lambda: processes.members_without(instance.id, others), at_once=True)
        processes.end(lambda: processes.in_session(process), at_once=True)


def run(home: Home, instance_id: str) -> None:
    """Watch until the state names another supervisor, or none."""
    supervisor = Supervisor(home)
    while instance := home.load():
        this = instance.process(NAME)
        if instance.id != instance_id or (this is not None and this.pid != os.getpid()):
            return
        if this is not None:
            supervisor.look(instance)
        # Reaps the children that have ended, so that their ids become free.
        _collect()
        time.sleep(_LOOK_SECONDS)


def _collect() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    run(Home(Path(sys.argv[1])), sys.argv[2])
