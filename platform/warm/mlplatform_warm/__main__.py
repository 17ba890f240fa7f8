"""Base template of a node, and everything that is forked from it: `python -m mlplatform_warm FOLDER SECONDS [head]`.

It waits for the given time before it imports anything, and programs start cold meanwhile. With `head` it imports only
what Ray's own actors need.

A forked process returns from all functions before it runs its program, so that only this module's frame is below
those of the program.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from mlplatform_warm import conditions, program, threads, title
from mlplatform_warm.client import FORKED, JOB_PREFIX, SILENCE_SECONDS, START, Cold, check_owner, receive, send
from mlplatform_warm.notes import DRIVERS
from mlplatform_warm.packages import FORK, OF_HEAD, OF_JOBS, Packages
from mlplatform_warm.preparation import prepare_next, without_ray
from mlplatform_warm.program import ModulePath, Program
from mlplatform_warm.recording import Record, import_in_background
from mlplatform_warm.template import Template, end_with_parent
from mlplatform_warm.variables import OF_DRIVERS

JOB_IDLE_SECONDS = 5.0
"""A job's template ends this long after the last of its processes."""

_RESTART_SECONDS, _BROKEN_SECONDS = 1.0, 60.0


def keep() -> None:
    """Fork the base template, and start again when it ends, as it does when a package changes.

    It returns in the forked process only.
    """
    end_with_parent(signal.SIGKILL, os.getppid())
    keeper = os.getpid()
    time.sleep(float(sys.argv[2]))
    started = time.monotonic()
    if (pid := os.fork()) == 0:
        end_with_parent(signal.SIGTERM, keeper)
        return
    _pid, status = os.waitpid(pid, 0)
    # A template that cannot be loaded is not tried more than once a minute.
    is_renewed = status == 0 or time.monotonic() - started > _BROKEN_SECONDS
    time.sleep(_RESTART_SECONDS if is_renewed else _BROKEN_SECONDS)
    # A new interpreter, because Python reads `.pth` files when it starts.
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606


def prepare(folder: Path, module_path: ModulePath, packages: Packages) -> Program | None:
    """Serve as a template until this process, forked from one, has a program to run; None when it is to end."""
    program.set_dumpable(False)
    base = template = Template(folder, "base", dict(os.environ))
    base.load(packages.base, import_in_background)
    if packages.driver and (drivers := base.fork(DRIVERS, _of_drivers(base), None)):
        if not drivers.listen():
            return None
        template = drivers
        _become(template, packages.driver)
    else:
        base.listen()
    while connection := template.serve(partial(prepare_next, template, base.environment)):
        with connection, suppress(Cold, OSError, ValueError):
            if template is not base:
                return _start(template, connection, module_path)
            template = _create(base, connection, packages)
            continue
        return None
    template.end()
    return None


def _create(base: Template, connection: socket.socket, packages: Packages) -> Template:
    """Become the template that a client asks for."""
    with _refusals(lambda: connection):
        request, _files = _request(connection)
        name, environment = str(request.get("create")), request.get("environment")
        base.check_sources()
        modules: tuple[str, ...]
        if name == DRIVERS and packages.driver:
            template, modules = base.successor(DRIVERS, _of_drivers(base), None), packages.driver
        elif name.startswith(JOB_PREFIX) and isinstance(environment, dict):
            # The base template has not loaded Ray; this one will, under the job's variables.
            both = (without_ray(variables) for variables in (base.environment, environment))
            _check_environment(base.record, *both)
            template, modules = base.successor(name, environment, JOB_IDLE_SECONDS), packages.worker
        else:
            raise Cold(f"template {name} does not exist")
        listening = template.listen()
        if listening and (slot := request.get("slot")):
            template.stay_as(str(slot))
    send(connection, {"ready": True}, [])
    if not listening:
        raise Cold("another process is this template")
    connection.close()
    _become(template, modules)
    return template


def _become(template: Template, modules: Sequence[str]) -> None:
    """Make this process, which was just forked, the template: it ends with its origin, and imports the modules."""
    template.end_with_origin()
    program.set_environment(template.environment, template.record.exported)
    template.load(modules)
    if "ray" in sys.modules:
        sys.modules[FORK].check()


def _of_drivers(base: Template) -> dict[str, str]:
    return {**base.environment, **OF_DRIVERS}


def _start(template: Template, connection: socket.socket, module_path: ModulePath) -> Program:
    """Become the process that the client describes, up to its first instruction."""
    # Asked for late, because the connection moves out of the way of the program's files.
    with _refusals(lambda: connection):
        request, files = _request(connection)
        environment: Any = request["environment"]
        prefix = str(request["prefix"])
        template.check_sources()
        _check_environment(template.record, template.environment, environment)
        # Before its files in /proc are written, which belong to root until then.
        program.set_dumpable(True)
        os.setsid()
        connection, lifeline, report = program.inherit(request, connection, files, template.record.exported)
        started = Program(list(request["arguments"]), report, template)
        folders, packages = started.module_path(environment), program.packages_of(prefix)
        if found := conditions.shadow(template.known, [*folders, *packages]):
            raise Cold(f"{found} comes before a package that is loaded")
        if found := next(filter(None, map(conditions.read_at_start, packages)), None):
            raise Cold(f"{found} is read when Python starts or by imports")
        module_path.apply(folders, packages)
        if prefix:
            program.enter(prefix)
        program.open_standard_streams(started.unbuffered or bool(environment.get("PYTHONUNBUFFERED")))
        # Ray sets the number of its workers with their first task.
        if template.name == DRIVERS or threads.NUMBER in environment:
            threads.resize(environment)
        program.draw_new_seeds(template.record.unseeded)
        if template.name == DRIVERS:
            # Ray gives its workers titles of their own.
            title.show(started.arguments, environment)
    send(connection, {"pid": os.getpid()}, [])
    connection.settimeout(None)
    if connection.recv(1) != START:
        raise Cold("the client has started the program cold")
    program.die_with_client(lifeline)
    connection.close()
    return started


@contextmanager
def _refusals(connection: Callable[[], socket.socket]) -> Iterator[None]:
    """Tell the client why it has to start cold."""
    try:
        yield
    except Exception as error:
        with suppress(OSError):
            send(connection(), {"cold": str(error) if isinstance(error, Cold) else repr(error)}, [])
        raise Cold from error


def _request(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    connection.settimeout(SILENCE_SECONDS)
    check_owner(connection)
    connection.sendall(FORKED)
    return receive(connection)


def _check_environment(record: Record, ours: Mapping[str, str], theirs: Mapping[str, str]) -> None:
    if differing := conditions.difference(record, ours, theirs):
        raise Cold(f"{differing} differs from the template's")


if __name__ == "__main__":
    keep()
    running = prepare(Path(sys.argv[1]), ModulePath(), OF_HEAD if "head" in sys.argv[3:] else OF_JOBS)
    if running is None:
        os._exit(0)
    try:
        running.code()()
    except BaseException as error:
        running.fail(error)
    running.end()
