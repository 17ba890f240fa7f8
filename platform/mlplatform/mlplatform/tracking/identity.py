"""Identity of a process in MLflow: its job, attempt, node and rank."""

from __future__ import annotations

import shlex
import socket
import sys

from mlplatform.compat import ray_core
from mlplatform.contract import TAG_ATTEMPT, TAG_HOLDER, TAG_JOB, TAG_NODE, TAG_ROLE
from mlplatform.settings.environment import launcher_ranks
from mlplatform.settings.job import Settings

DRIVER, WORKER = "driver", "worker"


def process_ranks() -> tuple[int, int]:
    """Return rank and local rank of this process among those that train together; 0 and 0 for a single process."""
    return ray_core.train_ranks() or launcher_ranks()


def identity_tags(config: Settings) -> dict[str, str]:
    """Return the tags of every run of a job, including runs that user code starts by itself."""
    tags = {
        TAG_JOB: config.job_id,
        TAG_ATTEMPT: str(config.attempt),
        TAG_NODE: socket.gethostname(),
        "mlplatform.image": config.image,
        **user_tag(config),
        "mlflow.source.git.commit": config.git_commit,
    }
    return {tag: value for tag, value in tags.items() if value}


def user_tag(config: Settings) -> dict[str, str]:
    """Return the tag that MLflow shows as "Created by"."""
    return {"mlflow.user": config.user}


def job_tags(config: Settings) -> dict[str, str]:
    """Return the tags of the job's own run: identity, role, holder and entry point."""
    # A worker's command line is Ray's, not one that a user has typed.
    command = config.entrypoint or ("" if ray_core.is_worker() else shlex.join(sys.orig_argv))
    tags = {
        **identity_tags(config),
        TAG_ROLE: "job",
        TAG_HOLDER: WORKER if ray_core.is_worker() else DRIVER,
        "mlplatform.entrypoint": command,
    }
    return {tag: value for tag, value in tags.items() if value}
