"""Rights to routes: each route declares one as a dependency, and the gateway does not start with one that has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, Path
from starlette.requests import HTTPConnection
from starlette.types import Scope

from mlplatform.api.jobs import ID
from mlplatform.gateway.audit.log import AuditLog
from mlplatform.gateway.errors import ForbiddenError, NoSuchJobError, RequestError
from mlplatform.gateway.http.auth import actor_of, principal_of
from mlplatform.gateway.jobs.schema import JobRow
from mlplatform.gateway.people.principal import Principal
from mlplatform.gateway.people.rights import Verb, may, refusal

JobId = Annotated[
    str,
    Path(
        description="A submission id, or Ray's id of the job's driver.",
        json_schema_extra={"pattern": ID},
    ),
]


class Right:
    """Dependency that refuses those who may not use a route, and returns the principal of the request.

    Args:
        who: those who may, as the refusal names them.
        allows: returns whether a principal may.
        service: service whose own token alone is accepted, if it has one.
    """

    def __init__(self, who: str, allows: Callable[[Principal], bool], service: str = "") -> None:
        self._who = who
        self._allows = allows
        self._service = service

    async def __call__(self, connection: HTTPConnection) -> Any:
        """Return the principal.

        Raises:
            ForbiddenError: the principal may not use the route.
        """
        principal, scope = principal_of(connection.scope), connection.scope
        who, allowed = self._who, self._allows(principal)
        if self._service and self._service in connection.app.state.services:
            who, allowed = f"the {self._service}, with its own token,", principal.service == self._service
        if not allowed:
            shown = f"{scope.get('method', 'WEBSOCKET')} {scope['path'][:200]!r}"
            raise ForbiddenError(f"Only {who} may use {shown} of the gateway.")
        return principal


def _is_person(principal: Principal) -> bool:
    return principal.administrator or bool(principal.person and not principal.attempt)


def _is_user(principal: Principal) -> bool:
    return _is_person(principal) or principal.attempt is not None


def _is_administrator(principal: Principal) -> bool:
    return principal.administrator


OPEN = Right("everybody", lambda _: True)
"""Everybody, without a token or with one that the route itself checks."""

USERS = Right("people and jobs", _is_user)
"""Everybody who has logged in, with the shared token or a person's, and attempts of their jobs."""

PEOPLE = Right("people", _is_person)

ATTEMPTS = Right("jobs, with the tokens of their attempts,", lambda principal: principal.attempt is not None)

ADMINISTRATORS = Right("administrators", _is_administrator)

LOG_SHIPPER, MLFLOW = "log shipper", "MLflow server"
"""Names of the services that have tokens of their own here."""

OF_LOG_SHIPPER = Right("administrators", _is_administrator, LOG_SHIPPER)

OF_MLFLOW = Right("administrators", _is_administrator, MLFLOW)

User = Annotated[Principal, Depends(USERS)]

AnyPerson = Annotated[Principal, Depends(PEOPLE)]

Administrator = Annotated[Principal, Depends(ADMINISTRATORS)]


class OwnRight(Right):
    """Right of a person who has a token of their own; the dependency returns the name.

    Args:
        what: what only people have, at the beginning of the sentence for others.
    """

    def __init__(self, what: str) -> None:
        super().__init__("people", _is_person)
        self._what = what

    async def __call__(self, connection: HTTPConnection) -> str:
        """Return the name.

        Raises:
            ForbiddenError: the principal may not use the route.
            RequestError: it is the shared token.
        """
        person: str = (await super().__call__(connection)).person
        if not person:
            raise RequestError(f"{self._what} are for people: log in with a token of your own, `mlplatform login`.")
        return person


class JobRight(Right):
    """Right to a job; the dependency returns the job.

    Args:
        verb: what the route does with it.
    """

    def __init__(self, verb: Verb) -> None:
        super().__init__("people and jobs", _is_user)
        self._verb = verb

    async def __call__(self, connection: HTTPConnection, job_id: JobId) -> JobRow:  # type: ignore[override]
        """Return the job.

        Raises:
            ForbiddenError: the principal may not do this with the job.
            NoSuchJobError: it does not exist.
        """
        await super().__call__(connection)
        job: JobRow = await connection.app.state.jobs.get(job_id)
        require(connection.scope, self._verb, job)
        return job


class JobOrRaysRight(JobRight):
    """Right to a job that may be Ray's alone; the dependency returns None for such a job, which administrators have.

    That somebody stops or deletes one is recorded before the head gets the request.
    """

    async def __call__(self, connection: HTTPConnection, job_id: JobId) -> JobRow | None:  # type: ignore[override]
        """Return the job; None if only Ray has it.

        Raises:
            ForbiddenError: the principal may not do this with the job.
            NoSuchJobError: the gateway does not have it, and the principal is not an administrator.
        """
        try:
            return await super().__call__(connection, job_id)
        except NoSuchJobError:
            if not principal_of(connection.scope).administrator:
                raise
        if self._verb in (Verb.STOP, Verb.DELETE):
            audit = AuditLog(connection.app.state.jobs.engine)
            await audit.add(actor_of(connection.scope), self._verb, f"job {job_id}")
        return None


def require(scope: Scope, verb: Verb, job: JobRow) -> None:
    """Check a right to a job.

    Raises:
        ForbiddenError: the sender of the request lacks it.
    """
    principal = principal_of(scope)
    if not may(principal, verb, job.person, job.team):
        raise ForbiddenError(refusal(principal, verb, job.id, job.person, job.team))
