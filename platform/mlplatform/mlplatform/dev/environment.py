"""Dev environments: jobs that wait in the queue like all others, and in which people then work over SSH.

The id of an environment is that of its job, the same at each start, so that editors remember its host. Files stay in
the home of its owner, which each host has in a volume.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

from mlplatform.api.jobs import Job
from mlplatform.client.follow import ENDED
from mlplatform.client.jobs import Jobs, Resources
from mlplatform.client.request import plain_name
from mlplatform.contract import DEV_READY
from mlplatform.errors import JobError, SettingsError

_PREFIX = "dev-"

_NAME = re.compile(r"[a-z0-9](-?[a-z0-9]){0,29}", re.ASCII)

ENTRYPOINT = "exec python -m mlplatform.node.environment"
"""Command of the job, which the front page's button submits, too."""


def is_environment(job_id: str, entrypoint: str) -> bool:
    """Return whether a job is a dev environment."""
    return job_id.startswith(_PREFIX) and entrypoint == ENTRYPOINT


def job_id(client: Jobs, name: str) -> str:
    """Return the id of one's environment of this name.

    Raises:
        SettingsError: the name is invalid.
    """
    if _NAME.fullmatch(name) is None:
        raise SettingsError(f"Invalid name {name!r}: use at most 30 lower-case letters, digits and single dashes.")
    return f"{_PREFIX}{plain_name(client.person()).lower()}-{name}"


def start(client: Jobs, name: str, resources: Resources, limit_s: float | None) -> str:
    """Submit an environment, in place of an ended one of the same name; return its id. An open one continues.

    Args:
        client: where it is submitted.
        name: its name among one's own.
        resources: what it holds.
        limit_s: seconds after which others may have the resources; None means the limit of the team.

    Raises:
        CapacityError: no node can ever have the resources.
    """
    own = job_id(client, name)
    with suppress(JobError):  # there is none
        if client.get(own).status not in ENDED:
            return own
        client.delete(own)
    return client.submit(ENTRYPOINT, None, job_id=own, resources=resources, limit_s=limit_s)


def until_ready(client: Jobs, job_id: str) -> Iterator[str]:
    """Yield the lines of an environment's log until people can connect to its present attempt.

    Raises:
        JobError: it has ended.
    """
    for line in client.follow(job_id):
        yield line
        if line.startswith(DEV_READY):
            last = client.attempts(job_id)[-1]
            if last.ended is None and line.endswith(f" {last.number}"):
                return
    raise JobError(f"{job_id} has ended before it could be used: {client.get(job_id).message}")


def environments(client: Jobs) -> list[Job]:
    """Return the environments that one may see, latest first."""
    return [job for job in client.list() if is_environment(job.id, job.entrypoint)]
