"""The request that submits a job: its id, its runtime environment and its metadata."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mlplatform.capacity.resources import Resources
from mlplatform.client import git
from mlplatform.contract import MAX_COMMAND
from mlplatform.settings.job import Settings

_NAME_CHARACTERS = 80
"""Characters of a job's name that its id keeps."""


def body(
    settings: Settings,
    job_id: str,
    command: str,
    folder: Path | None,
    package: str | None,
    resources: Resources,
    env: Mapping[str, str],
    note: str | None,
    pip: Sequence[str],
    options: Mapping[str, object],
) -> dict[str, Any]:
    """Return the body of `POST /api/jobs/`.

    Args:
        settings: the submitter, and the labels of the nodes for entry points.
        job_id: id of the job.
        command: shell command line.
        folder: folder with its files, whose state in git is recorded; None without files.
        package: address of the uploaded folder.
        resources: reserved for the entry point.
        env: environment variables.
        note: shown with its run; empty or None if there is none.
        pip: packages that Ray installs.
        options: of the platform, as `JobOptions` names them; those that are None have their defaults.
    """
    noted = {"MLPLATFORM_NOTE": note} if note else {}
    variables = {"MLPLATFORM_JOB_ID": job_id, "MLPLATFORM_USER": settings.user, **noted, **env}
    runtime_env: dict[str, Any] = {"env_vars": variables} | ({"working_dir": package} if package else {})
    source = git.describe(folder, command) if folder else {"entrypoint": command[:MAX_COMMAND]}
    metadata = {"user": settings.user, **source}
    given = {key: str(value) for key, value in options.items() if value is not None}
    fields: dict[str, Any] = {
        "entrypoint": command,
        "submission_id": job_id,
        "runtime_env": {**runtime_env, "pip": list(pip)} if pip else runtime_env,
        "metadata": metadata | ({"note": note} if note else {}) | given,
        "entrypoint_num_cpus": resources.cpus,
        "entrypoint_num_gpus": resources.gpus,
        "entrypoint_resources": dict(resources.custom) or None,
        "entrypoint_label_selector": settings.driver_labels or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def new_id(name: str) -> str:
    """Return an id for a job of this name, within the gateway's limits: 128 ASCII characters, no dot or dash first."""
    return f"{plain_name(name)}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def plain_name(name: str) -> str:
    """Return a job's name with the characters that ids may have."""
    return re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).lstrip(".-")[:_NAME_CHARACTERS] or "job"
