"""Routes for people and teams, their tokens, sessions and secrets, and the S3 key that they share."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response

from mlplatform.api import people as api
from mlplatform.api.base import Name
from mlplatform.api.storage import Key, Place, Store
from mlplatform.secrets.secret_folder import PATH as ATTEMPT_SECRETS
from mlplatform_gateway.errors import LoginCodeError, RequestError
from mlplatform_gateway.http import auth, request_body
from mlplatform_gateway.http.access import ADMINISTRATORS, OPEN, PEOPLE, AnAttempt, AnyPerson
from mlplatform_gateway.http.description import errors, raw_body
from mlplatform_gateway.http.request_body import JsonBody
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.mlflow.accounts import MlflowAccounts
from mlplatform_gateway.people.s3_key import FileKey, PeopleKey
from mlplatform_gateway.people.schema import TeamRow
from mlplatform_gateway.people.secrets import MOST_BYTES, Secrets
from mlplatform_gateway.people.sessions import LIFETIME, Sessions
from mlplatform_gateway.people.store import People
from mlplatform_gateway.people.tokens import Tokens
from mlplatform_gateway.usage.budgets import Budgets

_PEOPLE, _TEAMS = "/platform/people", "/platform/teams"

_NewPerson = Annotated[api.NewPerson, Depends(JsonBody(api.NewPerson))]
_NewTeam = Annotated[api.NewTeam, Depends(JsonBody(api.NewTeam))]
_TeamValues = Annotated[api.TeamValues, Depends(JsonBody(api.TeamValues))]
_LogInCode = Annotated[api.LogInCode, Depends(JsonBody(api.LogInCode))]
_OneTeam = Annotated[str | None, Query(description="Remove only from this team.")]
_Force = Annotated[str, Query(description="1: also if the team has open jobs, or people who are in no other team.")]
_TokenId = Annotated[str, Path(json_schema_extra={"pattern": "^[a-z0-9]{20}$"})]
_SECRETS = "/platform/secrets"
_Name = Annotated[str, Path(json_schema_extra={"pattern": "^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$"})]
_SMALLER = f"a secret has {MOST_BYTES >> 10} KiB at most, so store larger files in a bucket"
_S3_KEY = "/platform/storage-credentials"

_REGION = "us-east-1"
"""Region that requests to the object store are signed for, as for all services of the stack."""


def people_routes(people: People, key: FileKey | PeopleKey | None, accounts: MlflowAccounts) -> APIRouter:
    """Return the routes below `/platform/people`; without an object store, people have no S3 key."""
    router = APIRouter()

    @router.get(_PEOPLE)
    async def list_people(principal: AnyPerson) -> api.People:
        """People with their teams, and who asks."""
        return api.People(people=await people.people(), you=principal.person)

    @router.post(_PEOPLE, dependencies=[ADMINISTRATORS], responses=errors(404, 409))
    async def add_person(request: Request, new: _NewPerson) -> api.Invited:
        """Add a person, or add a team or rights to one; only for administrators."""
        return await people.add(**new.model_dump(), actor=auth.actor_of(request.scope))

    @router.delete(f"{_PEOPLE}/{{name}}", dependencies=[ADMINISTRATORS], responses=errors(404))
    async def remove_person(request: Request, name: Name, team: _OneTeam = None) -> api.RemovedPerson:
        """Remove a person and revoke all tokens, or remove the person from one team; only for administrators.

        Jobs of the person stay.
        """
        await people.remove(name, auth.actor_of(request.scope), team)
        if team is None and key is not None:
            await key.follow()
        await accounts.follow()
        return api.RemovedPerson(removed=name, s3_key_in_file=isinstance(key, FileKey))

    return router


def team_routes(people: People, open_jobs: Callable[[], Awaitable[Sequence[JobRow]]], budgets: Budgets) -> APIRouter:
    """Return the routes below `/platform/teams`."""
    router = APIRouter()

    @router.get(_TEAMS, dependencies=[PEOPLE])
    async def list_teams() -> api.Teams:
        """Teams with their shares, and what they have used of their budgets."""
        rows = await people.teams()
        used = {name: budget.used for name, budget in (await budgets.read(rows, datetime.now(UTC))).items()}
        teams = [api.Team.model_validate(row) for row in rows]
        return api.Teams(teams=[team.model_copy(update={"used_gpu_hours": used.get(team.name)}) for team in teams])

    @router.post(_TEAMS, dependencies=[ADMINISTRATORS], response_model=api.Team, responses=errors(409))
    async def add_team(request: Request, new: _NewTeam) -> TeamRow:
        """Add a team; only for administrators."""
        return await people.add_team(new.name, new.sent(), auth.actor_of(request.scope))

    @router.patch(f"{_TEAMS}/{{name}}", dependencies=[ADMINISTRATORS], response_model=api.Team, responses=errors(404))
    async def set_team(request: Request, name: Name, new: _TeamValues) -> TeamRow:
        """Change the values of a team that are sent; only for administrators."""
        return await people.set_team(name, new.sent(), auth.actor_of(request.scope))

    @router.delete(f"{_TEAMS}/{{name}}", dependencies=[ADMINISTRATORS], responses=errors(404, 409))
    async def remove_team(request: Request, name: Name, force: _Force = "0") -> dict[str, str]:
        """Remove a team; only for administrators.

        Its people and jobs stay, and open jobs continue without its share.
        """
        # In no transaction with the removal: a job that is submitted in between continues like these.
        jobs = sum(job.team == name for job in await open_jobs())
        await people.remove_team(name, auth.actor_of(request.scope), jobs, force == "1")
        return {"removed": name}

    return router


def token_routes(tokens: Tokens, check: auth.TokenCheck, accounts: MlflowAccounts) -> APIRouter:
    """Return the routes below `/platform/tokens`; the check counts wrong log-in codes."""
    router = APIRouter()

    @router.post(auth.TOKENS, dependencies=[OPEN], response_model=api.LoggedIn, responses=errors(403, 409))
    async def log_in(request: Request, response: Response, sent: _LogInCode) -> api.LoggedIn | Response:
        """Exchange a log-in code for a token; needs no token. A wrong code counts as a failed log-in."""
        try:
            issued = await tokens.exchange(sent.code, auth.client_address(request.scope), sent.instead_of)
        except LoginCodeError as error:
            return await check.fail(str(error), request.scope, "code")
        password = await accounts.log_in(issued.person)
        response.headers["Cache-Control"] = "no-store"
        return api.LoggedIn(person=issued.person, token=issued.token, expires=issued.expires, mlflow_password=password)

    @router.get(auth.TOKENS)
    async def list_tokens(principal: AnyPerson) -> api.Tokens:
        """The person's own tokens; all tokens for administrators."""
        found = await tokens.all(None if principal.administrator else principal.person)
        return api.Tokens(tokens=[api.Token.model_validate(token) for token in found])

    @router.delete(f"{auth.TOKENS}/{{token_id}}", responses=errors(404))
    async def revoke(request: Request, principal: AnyPerson, token_id: _TokenId) -> dict[str, str]:
        """Revoke one of the person's own tokens; administrators may revoke any.

        It is refused from now on, also where it has opened a session or follows a log.
        """
        person = None if principal.administrator else principal.person
        await tokens.revoke(token_id, auth.actor_of(request.scope), person, principal.token_id == token_id)
        await accounts.follow()
        return {"revoked": token_id}

    return router


def session_routes(check: auth.TokenCheck, sessions: Sessions) -> APIRouter:
    """Return the routes on which a browser logs in with the token and out again.

    `POST /api/authenticate` is the one of Ray's dashboard; status codes and texts are those of
    `ray/dashboard/http_server_head.py` in Ray 2.60, which however puts the token itself into the cookie.
    """
    router = APIRouter(dependencies=[OPEN], include_in_schema=False)

    @router.post(auth.LOGIN)
    async def log_in(request: Request) -> Response:
        """Accept the token in the header `Authorization` and set a cookie with a new session: 401 and 403 without."""
        opened = await open_session(check, sessions, request.headers.get("authorization", ""), request)
        if isinstance(opened, Response):
            return opened
        response = JSONResponse({"status": "authenticated", "message": "Token is valid"})
        set_session(response, request, opened)
        return response

    @router.post(auth.LOGOUT)
    async def log_out(request: Request) -> Response:
        """End the session of the cookie, delete the cookie, and go to the login page."""
        if session_id := request.cookies.get(auth.COOKIE):
            await sessions.close(session_id, replace(auth.actor_of(request.scope), kind="session"))
        response = RedirectResponse(auth.LOGIN_PAGE, 303)
        response.delete_cookie(auth.COOKIE)
        return response

    return router


async def open_session(
    check: auth.TokenCheck, sessions: Sessions, given: str, request: Request
) -> str | PlainTextResponse:
    """Return the id of a new session of the one whose token is given, or the refusal.

    Args:
        given: the credential, `Bearer <token>`; services and attempts have no sessions.
    """
    found = await check.authenticate(given, request.scope)
    if isinstance(found, PlainTextResponse):
        return found
    if found.service or found.attempt:
        return await check.fail(auth.INVALID, request.scope, "token")
    return await sessions.open(auth.actor_of(request.scope, found), found.token_id)


def set_session(response: Response, request: Request, session_id: str) -> None:
    """Add the session's cookie, which no script can read and no other site's page sends along."""
    secure = request.url.scheme == "https"
    lifetime = int(LIFETIME.total_seconds())
    response.set_cookie(auth.COOKIE, session_id, max_age=lifetime, secure=secure, httponly=True, samesite="strict")


def secret_routes(secrets: Secrets) -> APIRouter:
    """Return the routes below `/platform/secrets`, and the one by which attempts of a person's jobs read the values."""
    router = APIRouter()

    @router.get(_SECRETS, dependencies=[PEOPLE], responses=errors(400))
    async def list_all(request: Request) -> api.Secrets:
        """The person's secrets, without their values, which nobody reads here."""
        return api.Secrets(secrets=await secrets.listed(_person(request)))

    @router.put(
        f"{_SECRETS}/{{name}}", dependencies=[PEOPLE], openapi_extra=raw_body("The value, from 1 byte to 64 KiB.")
    )
    async def put(request: Request, name: _Name) -> dict[str, str]:
        """Set a secret of the person, who may have 100; jobs that start from now on get it as a file."""
        person = _person(request)
        body = await request_body.whole(request.receive, MOST_BYTES, _SMALLER)
        await secrets.put(person, name, body, auth.actor_of(request.scope))
        return {"set": name}

    @router.delete(f"{_SECRETS}/{{name}}", dependencies=[PEOPLE], responses=errors(404))
    async def remove(request: Request, name: _Name) -> dict[str, str]:
        """Remove a secret of the person; attempts that are running keep it."""
        await secrets.remove(_person(request), name, auth.actor_of(request.scope))
        return {"removed": name}

    @router.get(ATTEMPT_SECRETS)
    async def of_owner(response: Response, principal: AnAttempt) -> dict[str, dict[str, str]]:
        """The secrets of a job's owner by name, in base64, for an attempt that runs; only with the attempt's token."""
        values = await secrets.values(principal.person)
        response.headers["Cache-Control"] = "no-store"
        return {"secrets": {name: b64encode(value).decode() for name, value in values.items()}}

    return router


def _person(request: Request) -> str:
    return auth.person_of(request.scope, "Secrets")


def s3_key_routes(key: FileKey | PeopleKey | None, external: str, port: int) -> APIRouter:
    """Return the routes `GET` and `POST /platform/storage-credentials`.

    Args:
        key: the key; None without an object store.
        external: address of an S3 server of others; empty for the stack's own.
        port: port of the stack's own on this host.
    """
    router = APIRouter(dependencies=[PEOPLE])

    @router.get(_S3_KEY)
    async def get(request: Request) -> Store:
        """The address of the object store; null if the platform stores in folders."""
        # By the name by which the client reaches this host, be it by way of a forwarded port.
        own = f"{request.url.scheme}://{request.url.hostname}:{port}"
        return Store(s3=None if key is None else Place(endpoint_url=external or own, region=_REGION))

    # Not to a GET, which sessions of browsers may send.
    @router.post(_S3_KEY, responses=errors(400, 500))
    async def post(response: Response) -> Key:
        """The S3 key of people, which changes when a person is removed; the gateway does not store it."""
        if key is None:
            raise RequestError("This platform stores in folders, so that there is no S3 key.")
        name, secret = await key.current()
        response.headers["Cache-Control"] = "no-store"
        return Key(access_key=name, secret_key=secret)

    return router
