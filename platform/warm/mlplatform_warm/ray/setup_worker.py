"""Replacement of Ray's `setup_worker.py`, which each worker process begins as; seen in Ray 2.60.0.

Ray's imports `ray` only to execute the worker with its environment variables (1 to 2 s of CPU per process, of which a
job with two train workers starts eight). This one uses the standard library, and leaves to Ray's whatever it does not
know. `node.prepare` installs it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, MutableMapping

# As a script, this file's folder is first on the path, and some of its modules are named like packages.
if __name__ == "__main__":
    del sys.path[0]

from mlplatform_warm import client, notes

CONTEXT = "--serialized-runtime-env-context="
LANGUAGE = "--language="

_OF_SUPERVISOR = "RAY_worker_niceness"
"""Variable that Ray gives to the supervisors of jobs only (`JobManager._get_supervisor_runtime_env`)."""

FIELDS = {"command_prefix", "env_vars", "py_executable", "override_worker_entrypoint", "java_jars"}
"""Keys of a serialized `ray._private.runtime_env.context.RuntimeEnvContext`."""


def main(arguments: list[str], provide: Callable[[MutableMapping[str, str]], None] | None = None) -> None:
    """Execute a worker; it does not return.

    Args:
        arguments: those that the raylet passes, with `CONTEXT` and `LANGUAGE` anywhere.
        provide: called with the worker's environment before it starts, to add to it.
    """
    context = json.loads(_option(arguments, CONTEXT) or "{}")
    if _option(arguments, LANGUAGE) != "PYTHON" or not context.keys() <= FIELDS:
        # A module of this name would run under its own `__main__`; Ray's file reads `sys.argv`.
        os.execv(sys.executable, [sys.executable, "-m", "ray._private.workers.setup_worker", *arguments])  # noqa: S606
    rest = [argument for argument in arguments if not argument.startswith((CONTEXT, LANGUAGE))]
    rest[0] = context.get("override_worker_entrypoint") or rest[0]
    _set(context.get("env_vars") or {})
    if provide:
        provide(os.environ)
    executable = context.get("py_executable") or sys.executable
    prefix = _enter(context.get("command_prefix") or [])
    environment = client.prefix_of(executable)
    if (executable == sys.executable or environment) and not prefix:
        if _OF_SUPERVISOR in (context.get("env_vars") or {}):
            # It runs Ray's code, and starts the job's own with its variables.
            environment = ""
        if client.SOCKETS in os.environ and "RAY_JOB_ID" in os.environ and rest[0].endswith(".py"):
            client.run(rest, dict(os.environ), client.job_template(dict(os.environ)), environment)
        os.execv(sys.executable, [client.python_of(environment) or sys.executable, *rest])  # noqa: S606
    if "RAY_JOB_ID" in os.environ:
        notes.note(dict(os.environ), "worker", "its runtime environment has a Python or a shell command of its own")
    # Both may be shell code, such as `source activate` or `uv run python`; the default is a path, perhaps with spaces.
    python = shlex.quote(executable) if executable == sys.executable else executable
    command = [*prefix, "exec", python, *map(shlex.quote, rest)]
    os.execvp("bash", ["bash", "-c", " ".join(command)])  # noqa: S606


def _enter(prefix: list[str]) -> list[str]:
    """Do as the shell would: change to the job's folder and activate its environment; return the rest of the prefix."""
    if not _is_here(os.environ.get("PWD", "")):
        os.environ["PWD"] = os.getcwd()  # noqa: PTH109 - pathlib takes 5 ms to import
    while "&&" in prefix:
        end = prefix.index("&&")
        match prefix[:end]:
            case ["cd", folder] if shlex.quote(folder) == folder:
                try:
                    os.chdir(folder)
                except OSError:
                    break
                os.environ.update(OLDPWD=os.environ["PWD"], PWD=folder)
            case ["source", script, "1>&2"] if environment := client.prefix_of(script):
                os.environ.update(VIRTUAL_ENV=environment, PATH=f"{environment}/bin:{os.environ.get('PATH', '')}")
                os.environ.pop("PYTHONHOME", None)
            case _:
                break
        prefix = prefix[end + 1 :]
    return prefix


def _is_here(folder: str) -> bool:
    try:
        return folder.startswith("/") and os.path.samefile(folder, ".")  # noqa: PTH121 - as above
    except OSError:
        return False


def _option(arguments: list[str], name: str) -> str | None:
    return next((argument.removeprefix(name) for argument in arguments if argument.startswith(name)), None)


def _set(variables: dict[str, str]) -> None:
    """Set variables, as `ray._private.utils.update_envs` does: `${NAME}` is replaced, by nothing if it is not set."""
    for name, value in variables.items():
        os.environ[name] = re.sub(r"\$\{[A-Z0-9_]+\}", "", os.path.expandvars(value))


if __name__ == "__main__":
    main(sys.argv[1:])
