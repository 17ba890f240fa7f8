"""Hook of `ray job submit` that records user, commit and diff with a job."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from mlplatform.client.git import describe
from mlplatform.compat.ray_jobs import add_job_metadata
from mlplatform.settings.job import settings


def add_to_submission(
    *,
    entrypoint: tuple[str, ...] = (),
    working_dir: str | None = None,
    runtime_env: str | None = None,
    runtime_env_json: str | None = None,
    **_: Any,
) -> None:
    """Add user, commit and diff to a plain `ray job submit`; Ray calls this if RAY_JOB_SUBMIT_HOOK names it.

    An error is printed, and the job is submitted without this metadata.

    Args: as Ray passes them, those of `ray job submit`.
    """
    try:
        folder = working_dir or _working_dir(runtime_env, runtime_env_json)
        known = {"user": settings().user}
        if folder and Path(folder).is_dir():
            known |= describe(Path(folder), shlex.join(entrypoint))
        add_job_metadata(known)
    except Exception as error:
        print(f"The job's user and commit are not recorded: {error}", file=sys.stderr, flush=True)


def _working_dir(runtime_env: str | None, runtime_env_json: str | None) -> str | None:
    """Return the working directory named in a runtime environment, given as a YAML file or as JSON."""
    if runtime_env_json:
        found = json.loads(runtime_env_json)
    elif runtime_env:
        import yaml

        found = yaml.safe_load(Path(runtime_env).read_text()) or {}
    else:
        return None
    return str(found["working_dir"]) if "working_dir" in found else None
