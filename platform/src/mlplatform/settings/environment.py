"""Access to the environment of this process: the only module, besides the settings' own loader, that touches it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mlplatform.compat import ray_core

OPEN_RUN = "MLPLATFORM_OPEN_RUN"
"""Variable by which a process tells its children that it holds the job's run open, and which run that is."""

_DEFAULTS = "MLPLATFORM_DEFAULTS"
"""Variable by which a process tells itself and its children which variables it has set for libraries, and to what."""


def environment() -> Mapping[str, str]:
    """The environment of this process, for the ones that are started from it."""
    return dict(os.environ)


def provide_secret(variable: str, file: Path) -> None:
    """Set a variable of this process from a file, for a library that takes a secret from nowhere else."""
    os.environ[variable] = file.read_text().strip()


@contextmanager
def changed_environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables, or remove those that are None; at the end all of them are as before, whatever was done to them."""
    before = {name: os.environ.get(name) for name in variables}
    try:
        _change(variables)
        yield
    finally:
        _change(before)


def open_run() -> str | None:
    """The run that a parent process of this one holds open; read anew, because it comes and goes."""
    return os.environ.get(OPEN_RUN)


def launcher_ranks() -> tuple[int, int]:
    """Rank and local rank that torchrun, Lightning or SLURM has given this process; 0 and 0 outside of them.

    Read anew, because Lightning sets them in a process that is already running.
    """
    node, local = _number("NODE_RANK", "GROUP_RANK"), _number("LOCAL_RANK")
    rank = _number("RANK")
    if rank is None and local is not None:
        rank = (node or 0) * (_number("LOCAL_WORLD_SIZE") or 1) + local if node else local
    # Under Ray, SLURM's variables are those of the process that started the node: every job there would inherit them.
    if rank is None and ray_core.JOB_CONFIG not in os.environ and not ray_core.is_worker():
        rank, local = _number("SLURM_PROCID"), _number("SLURM_LOCALID")
    return rank or 0, local or 0


def set_environment(variables: Mapping[str, str]) -> None:
    """Set variables for the rest of this process, as the process has them that has started it."""
    os.environ.update(variables)


def set_default_environment(variables: Mapping[str, str]) -> None:
    """Set variables that a library reads only from the environment, where the user has not set them.

    What an earlier call has set, also one of a parent process, is not the user's: it is replaced.
    """
    ours = json.loads(os.environ.get(_DEFAULTS) or "{}")
    new = {name: value for name, value in variables.items() if os.environ.get(name) in (None, ours.get(name))}
    os.environ.update({**new, _DEFAULTS: json.dumps({**ours, **new})})


def _change(variables: Mapping[str, str | None]) -> None:
    for variable, value in variables.items():
        if value is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = value


def _number(*variables: str) -> int | None:
    """The first of the variables that holds a number."""
    return next((int(value) for name in variables if (value := os.environ.get(name, "")).isdecimal()), None)
