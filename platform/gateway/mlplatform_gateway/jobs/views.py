"""Jobs as the one who asks may see them, and the owner of a new job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import HTTPConnection

from mlplatform_gateway.errors import ForbiddenError, NoSuchNameError
from mlplatform_gateway.http.auth import principal_of
from mlplatform_gateway.http.clients import is_browser
from mlplatform_gateway.jobs.details import HIDDEN, JobList, job_details, listed_publicly, public_reason
from mlplatform_gateway.jobs.overview import ShownJobs
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.people.rights import Principal, Verb, may
from mlplatform_gateway.people.store import People
from mlplatform_gateway.queue.planner.queue import JobClass

_USER = "MLPLATFORM_USER"
"""Variable that would take precedence over the metadata's user in the processes of the job."""

_NOT_SECRET = {_USER, "MLPLATFORM_JOB_ID", "MLPLATFORM_NOTE", "MLFLOW_EXPERIMENT_NAME"}
"""Variables that `mlplatform submit` sets, whose values the metadata or MLflow shows."""


def details_for(request: HTTPConnection, job: JobRow) -> dict[str, Any]:
    """Return Ray's fields of a job, without what the one who asks may not see, and without values for browsers."""
    principal = principal_of(request.scope)
    if not may(principal, Verb.METADATA, job.person, job.team):
        return listed_publicly(job, job.last_attempt)
    values = may(principal, Verb.VALUES, job.person, job.team)
    return job_details(job, job.last_attempt, not values or is_browser(request.headers))


async def listed_for(request: HTTPConnection, jobs: JobList) -> list[bytes]:
    """Return the JSON of each job, as `details_for` shows it, in the order of arrival.

    Raises:
        UnreachableError: the database is unavailable.
    """
    principal, browser = principal_of(request.scope), is_browser(request.headers)
    texts = []
    for entry in await jobs.entries():
        person, team = entry.job.person, entry.job.team
        public = not may(principal, Verb.METADATA, person, team)
        texts.append(entry.text(public or browser or not may(principal, Verb.VALUES, person, team), public))
    return texts


def of_ray_for(principal: Principal, details: Mapping[str, Any]) -> dict[str, Any]:
    """Return Ray's details of a job that bypassed the gateway; only administrators see more than that it runs."""
    if principal.administrator:
        return dict(details)
    user = (details.get("metadata") or {}).get("user")
    hidden = {"entrypoint": HIDDEN, "message": public_reason(details.get("message") or ""), "runtime_env": {}}
    return {**details, **hidden, "metadata": {"user": user} if user else {}, "driver_info": None}


def hide_from(principal: Principal, jobs: ShownJobs) -> None:
    """Replace the commands and messages that somebody may not see in lists of the reader's own."""
    for job in (*jobs.running, *jobs.waiting, *jobs.ended):
        if not may(principal, Verb.METADATA, job.person, job.team):
            job.entrypoint, job.message = HIDDEN, public_reason(job.message)


async def assign(principal: Principal, people: People, job: JobRow) -> None:
    """Make a person the owner of a new job, whatever user the submission names; keep a job of the shared token.

    A job that sets no limit gets that of its team.

    The metadata may name one of the person's teams as `team`; otherwise the job is for the team joined first. A job
    that an attempt submits has owner, team and token of the attempt's job.

    Raises:
        ForbiddenError: the person is not a member of the team, or of none, or may not submit urgent jobs for it; or an
            attempt names another team.
        NoSuchNameError: an administrator names a team that does not exist.
    """
    attempt, named = principal.attempt, job.job_metadata.get("team")
    job.token = principal.token_id or None
    principal = attempt.owner if attempt else principal
    if not principal.person:
        return
    known = {row.name: row for row in await people.teams()}
    team = attempt.team if attempt else named or next(iter(principal.teams), None)
    if attempt and named not in (None, team):
        raise ForbiddenError(
            f"Job {attempt.job} is of team {team}, and so is every job that it submits; remove team {named[:100]!r}."
        )
    _check_member(principal, team)
    if team is not None and team not in principal.teams and team not in known:
        raise NoSuchNameError(f"Team {team[:100]!r} does not exist; `mlplatform teams list` lists them.")
    _check_class(principal, team, JobClass(job.job_class))
    job.person, job.team = principal.person, team
    name_user(job, principal.person)
    if job.limit_s is None and team in known:
        job.limit_s = known[team].default_limit_s


def name_user(job: JobRow, user: str) -> None:
    """Name the submitter of a job, in its metadata and to its processes too."""
    job.user, job.job_metadata = user, {**job.job_metadata, "user": user}
    variables = job.runtime_env.get("env_vars") or {}
    if _USER in variables:
        job.runtime_env = {**job.runtime_env, "env_vars": {**variables, _USER: user}}


def check_values(principal: Principal, job: JobRow) -> None:
    """Raise ForbiddenError if a job has variables whose values somebody may not read, but would get in a repetition."""
    own = sorted((job.runtime_env.get("env_vars") or {}).keys() - _NOT_SECRET)
    if own and not may(principal, Verb.VALUES, job.person, job.team):
        names = ", ".join(own)[:200]
        raise ForbiddenError(
            f"Job {job.id} has variables whose values only its owner may use ({names}); submit your own."
        )


def check_team(principal: Principal, job: JobRow) -> None:
    """Check that the owner of a job that is resumed may still submit such a job for its team.

    Raises:
        ForbiddenError: the person has left the team, or the job is urgent and the person no longer leads the team.
    """
    if principal.person and principal.person == job.person:
        _check_member(principal, job.team)
        _check_class(principal, job.team, JobClass(job.job_class))


def _check_class(principal: Principal, team: str | None, job_class: JobClass) -> None:
    if job_class is JobClass.URGENT and not may(principal, Verb.URGENT, None, team):
        raise ForbiddenError(f"Only leads of team {team} and administrators may submit urgent jobs; use another class.")


def _check_member(principal: Principal, team: str | None) -> None:
    if not may(principal, Verb.SUBMIT, None, team):
        if not principal.teams:
            raise ForbiddenError(f"{principal.person} is in no team; ask an administrator to add you to one.")
        own = " or ".join(principal.teams)
        raise ForbiddenError(f"You may not submit jobs for team {str(team)[:100]!r}; your teams are {own}.")
