"""Access to the environment of this process: the only module, besides the loader of the settings, that accesses it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from mlplatform.compat import ray_core

OPEN_RUN = "MLPLATFORM_OPEN_RUN"
"""Variable with the id of the job's run, set for the children of the process that holds it open."""

_DEFAULTS = "MLPLATFORM_DEFAULTS"
"""Variable that lists, as JSON, the variables that this process or a parent has set for libraries."""

_OF_CLIENTS = re.compile(
    r"AWS_(?!REQUEST_|RESPONSE_|EC2_|MAX_ATTEMPTS|RETRY_MODE|PAGER)\w+"
    r"|RAY_(ADDRESS|API_SERVER_ADDRESS|AUTH_\w+|JOB_HEADERS|NAMESPACE)"
    r"|MLFLOW_(TRACKING_\w+|REGISTRY_URI|S3_\w+|EXPERIMENT_\w+|RUN_ID)"
    r"|MLPLATFORM_(STORAGE|DATASETS|SHARED|DRIVER_LABEL|TRACKING_\w+|GATEWAY)"
)
"""Variables that choose the server, the account or the run of clients of S3, Ray, MLflow and the platform."""

_left_out: dict[str, str] = {}


def environment() -> Mapping[str, str]:
    """Return the environment of this process, for processes that are started from it."""
    return dict(os.environ)


def leave_out(pattern: re.Pattern[str]) -> None:
    """Remove the variables whose names match from this process, and so from all that it starts."""
    for name in [name for name in os.environ if pattern.fullmatch(name)]:
        _left_out[name] = os.environ.pop(name)


def shell_environment() -> Mapping[str, str]:
    """Return the environment with what was left out, for programs that are not the stack's own."""
    return {**os.environ, **_left_out}


def in_the_way(ours: Mapping[str, str]) -> list[str]:
    """Return the variables of this process that lead clients elsewhere than `ours`; those of S3 if that names one."""
    has_s3 = "AWS_ENDPOINT_URL" in ours
    found = (name for name in os.environ if _OF_CLIENTS.fullmatch(name) and name not in ours)
    return sorted(name for name in found if has_s3 or not name.startswith("AWS_"))


@contextmanager
def changed_environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables, or remove those that are None; at the end, restore their earlier values."""
    before = {name: os.environ.get(name) for name in variables}
    try:
        _change(variables)
        yield
    finally:
        _change(before)


def open_run() -> str | None:
    """Return the run that a parent process holds open; read at each call, because it changes."""
    return os.environ.get(OPEN_RUN)


def launcher_ranks() -> tuple[int, int]:
    """Return rank and local rank from torchrun, Lightning or SLURM; 0 and 0 without any of them.

    Read at each call, because Lightning sets them in a process that is already running.
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
    """Set variables for the rest of this process."""
    os.environ.update(variables)


def set_default_environment(variables: Mapping[str, str]) -> None:
    """Set variables that a library reads only from the environment, unless the user has set them.

    A value that an earlier call set, in this process or a parent, is not the user's, so it is replaced.
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
    """Return the first of the variables that holds a number."""
    return next((int(value) for name in variables if (value := os.environ.get(name, "")).isdecimal()), None)
