"""Rights to routes: each route declares one as its first dependency, or else the gateway does not start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, Path
from starlette.requests import HTTPConnection
from starlette.types import Scope

from mlplatform.api.jobs import ID
from mlplatform_gateway.audit.store import AuditLog
from mlplatform_gateway.errors import ForbiddenError, NoSuchJobError
from mlplatform_gateway.http.auth import actor_of, changes_by_session, principal_of
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.people.rights import Principal, Relation, Verb, may, refusal, relation

LOG_SHIPPER, MLFLOW = "log shipper", "MLflow server"
"""Names of the services that have tokens of their own here."""

_JobId = Annotated[
    str, Path(description="A submission id, or Ray's id of the job's driver.", json_schema_extra={"pattern": ID})
]


class Right:
    """Dependency that refuses those who may not use a route, and returns the principal of the request.

    Args:
        who: those who may, as the refusal names them.
        allows: returns whether a principal may.
        service: service whose own token alone is accepted, if it has one.
    """

    def __init__(self, who: str, allows: Callable[[Principal], bool], service: str = "") -> None:
        self._who, self._allows, self._service = who, allows, service

    async def __call__(self, connection: HTTPConnection) -> Any:
        """Return the principal.

        Raises:
            ForbiddenError: the principal may not use the route.
        """
        scope, principal = connection.scope, principal_of(connection.scope)
        who, allowed = self._who, self._allows(principal)
        if self._service in scope["app"].state.services:
            who, allowed = f"the {self._service}, with its own token,", principal.service == self._service
        if not allowed:
            shown = f"{scope.get('method', 'WEBSOCKET')} {scope['path'][:200]!r}"
            raise ForbiddenError(f"Only {who} may use {shown} of the gateway.")
        return principal


class JobRight(Right):
    """Right to a job; the dependency returns the job."""

    def __init__(self, verb: Verb) -> None:
        super().__init__("people and jobs", _is_user)
        self._verb = verb

    async def __call__(self, connection: HTTPConnection, job_id: _JobId) -> Any:  # type: ignore[override]
        """Return the job.

        Raises:
            ForbiddenError: the principal may not do this with the job.
            NoSuchJobError: it does not exist.
        """
        await super().__call__(connection)
        job = await connection.app.state.jobs.get(job_id)
        try:
            require(connection.scope, self._verb, job)
        except ForbiddenError:
            if self._verb is Verb.SHELL:
                audit = AuditLog(connection.app.state.jobs.engine)
                await audit.add(actor_of(connection.scope), "refused shell", f"job {job_id}")
            raise
        return job


class JobOrRaysRight(JobRight):
    """Right to a job that may be Ray's alone; the dependency returns None for such a job, which administrators have.

    That somebody stops or deletes one is recorded before the head gets the request.
    """

    async def __call__(self, connection: HTTPConnection, job_id: _JobId) -> Any:  # type: ignore[override]
        """Return the job; None if only Ray has it.

        Raises:
            ForbiddenError: the principal may not do this with the job.
            NoSuchJobError: the gateway does not have it, and the principal is not an administrator.
        """
        try:
            return await super().__call__(connection, job_id)
        except NoSuchJobError:
            if not principal_of(connection.scope).administrator or changes_by_session(connection.scope):
                raise
        if self._verb in (Verb.STOP, Verb.DELETE):
            audit = AuditLog(connection.app.state.jobs.engine)
            await audit.add(actor_of(connection.scope), self._verb, f"job {job_id}")
        return None


def _is_person(principal: Principal) -> bool:
    return principal.administrator or bool(principal.person and not principal.attempt)


def _is_user(principal: Principal) -> bool:
    return _is_person(principal) or principal.attempt is not None


def _is_administrator(principal: Principal) -> bool:
    return principal.administrator


OPEN = Depends(Right("everybody", lambda _: True))
"""Everybody, without a token or with one that the route itself checks."""

USERS = Depends(Right("people and jobs", _is_user))
"""Everybody who has logged in, with the shared token or a person's, and attempts of their jobs."""

PEOPLE = Depends(Right("people", _is_person))
ATTEMPTS = Depends(Right("jobs, with the tokens of their attempts,", lambda principal: principal.attempt is not None))
ADMINISTRATORS = Depends(Right("administrators", _is_administrator))
OF_LOG_SHIPPER = Depends(Right("administrators", _is_administrator, LOG_SHIPPER))
OF_MLFLOW = Depends(Right("administrators", _is_administrator, MLFLOW))

User = Annotated[Principal, USERS]
AnyPerson = Annotated[Principal, PEOPLE]
AnAttempt = Annotated[Principal, ATTEMPTS]


def of_job(verb: Verb) -> Any:
    """Return the dependency of a route that does this with a job of the gateway; it returns the job."""
    return Depends(JobRight(verb))


def of_job_or_rays(verb: Verb) -> Any:
    """Return the dependency of a route that may also do it with a job that only Ray has, for which it returns None."""
    return Depends(JobOrRaysRight(verb))


def require(scope: Scope, verb: Verb, job: JobRow) -> None:
    """Check a right to a job; with a session, people change their own jobs only.

    Raises:
        ForbiddenError: the sender of the request lacks it.
    """
    principal = principal_of(scope)
    if changes_by_session(scope) and relation(principal, job.person, job.team) is not Relation.OWNER:
        raise ForbiddenError(f"Buttons are for jobs of one's own; for job {job.id}, use the command line.")
    if not may(principal, verb, job.person, job.team):
        raise ForbiddenError(refusal(principal, verb, job.id, job.person, job.team))
