"""Templates that are ready before a job asks for them: of the next job, and of the supervisors of all jobs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from mlplatform_warm import client, conditions
from mlplatform_warm.template import Template
from mlplatform_warm.variables import AFTER_FORK

NEXT_JOB = "next-job"
"""Slot of the template of the job that comes next; Ray numbers its jobs."""

JOB_SERVER = "job-server"
"""Slot of the template of supervisors, which all belong to the same job of Ray: that of its job server."""

_SUPERVISORS = ("ray::JobSuperv", "ray::_job_super")
"""Beginnings of their names; seen in Ray 2.60.0."""

_OF_JOBS = "ray::"
"""Beginning of the names of workers that have run an actor or a task."""


def prepare_next(template: Template, node: Mapping[str, str]) -> None:
    """Keep a template of supervisors; let that of a job prepare the one of the next job.

    Args:
        template: of workers, whose programs have ended.
        node: environment of the base template.
    """
    if any(name.startswith(_SUPERVISORS) for name in template.names):
        of_all_jobs = _without_job(template.environment, node)
        # Unless the first job's own variables have decided something in the imports.
        if conditions.difference(template.record, template.environment, of_all_jobs) is None:
            template.stay_as(JOB_SERVER)
    elif any(name.startswith(_OF_JOBS) for name in template.names):
        environment = next_environment(template.environment, node)
        with suppress(client.Cold, OSError, ValueError):
            client.create(str(template.folder), client.job_template(environment), environment, NEXT_JOB)


def next_environment(environment: Mapping[str, str], node: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the next job's workers, as far as it is known: without variables of the job itself.

    Args:
        environment: of a job's workers.
        node: environment of the base template.
    """
    number = int.from_bytes(bytes.fromhex(environment["RAY_JOB_ID"]), "little") + 1
    return {**_without_job(environment, node), "RAY_JOB_ID": number.to_bytes(4, "little").hex()}


def _without_job(environment: Mapping[str, str], node: Mapping[str, str]) -> dict[str, str]:
    of_ray = {name: value for name, value in environment.items() if name.startswith("RAY_") and name not in AFTER_FORK}
    return {**without_ray(node), **of_ray}


def without_ray(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Ray does not read while it is loaded."""
    return {name: value for name, value in environment.items() if not name.startswith("RAY_")}
