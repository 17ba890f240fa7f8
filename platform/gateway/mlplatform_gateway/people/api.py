"""Routes for people, teams and tokens, and the exchange of a log-in code for a token."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from mlplatform.api import people as api
from mlplatform.api.base import Name
from mlplatform_gateway.errors import LoginCodeError
from mlplatform_gateway.http.access import ADMINISTRATORS, OPEN, PEOPLE, AnyPerson
from mlplatform_gateway.http.auth import TOKENS, TokenCheck, actor_of, client_address
from mlplatform_gateway.http.description import errors
from mlplatform_gateway.http.request_body import JsonBody
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.mlflow.accounts import MlflowAccounts
from mlplatform_gateway.people.s3_key import FileKey, PeopleKey
from mlplatform_gateway.people.schema import TeamRow
from mlplatform_gateway.people.store import People
from mlplatform_gateway.people.tokens import Tokens

_PEOPLE, _TEAMS = "/platform/people", "/platform/teams"

_NewPerson = Annotated[api.NewPerson, Depends(JsonBody(api.NewPerson))]
_NewTeam = Annotated[api.NewTeam, Depends(JsonBody(api.NewTeam))]
_TeamValues = Annotated[api.TeamValues, Depends(JsonBody(api.TeamValues))]
_LogInCode = Annotated[api.LogInCode, Depends(JsonBody(api.LogInCode))]
_OneTeam = Annotated[str | None, Query(description="Remove only from this team.")]
_Force = Annotated[str, Query(description="1: also if the team has open jobs, or people who are in no other team.")]
_TokenId = Annotated[str, Path(json_schema_extra={"pattern": "^[a-z0-9]{20}$"})]


def people_routes(people: People, key: FileKey | PeopleKey | None, accounts: MlflowAccounts) -> APIRouter:
    """Return the routes below `/platform/people`.

    Args:
        people: people and teams.
        key: the S3 key of people; None without an object store.
        accounts: accounts of people at MLflow.
    """
    router = APIRouter()

    @router.get(_PEOPLE, dependencies=[PEOPLE])
    async def list_people() -> api.People:
        """People with their teams."""
        return api.People(people=await people.people())

    @router.post(_PEOPLE, dependencies=[ADMINISTRATORS], responses=errors(404, 409))
    async def add_person(request: Request, new: _NewPerson) -> api.Invited:
        """Add a person, or add a team or rights to one; only for administrators."""
        return await people.add(new.name, actor_of(request.scope), new.team, new.lead, new.administrator)

    @router.delete(f"{_PEOPLE}/{{name}}", dependencies=[ADMINISTRATORS], responses=errors(404))
    async def remove_person(request: Request, name: Name, team: _OneTeam = None) -> api.RemovedPerson:
        """Remove a person and revoke all tokens, or remove the person from one team; only for administrators.

        Jobs of the person stay.
        """
        await people.remove(name, actor_of(request.scope), team)
        if team is None and key is not None:
            await key.follow()
        await accounts.follow()
        return api.RemovedPerson(removed=name, s3_key_in_file=isinstance(key, FileKey))

    return router


def team_routes(people: People, open_jobs: Callable[[], Awaitable[Sequence[JobRow]]]) -> APIRouter:
    """Return the routes below `/platform/teams`.

    Args:
        people: people and teams.
        open_jobs: returns the jobs that have not ended.
    """
    router = APIRouter()

    @router.get(_TEAMS, dependencies=[PEOPLE])
    async def list_teams() -> api.Teams:
        """Teams with their shares."""
        return api.Teams(teams=[api.Team.model_validate(team) for team in await people.teams()])

    @router.post(_TEAMS, dependencies=[ADMINISTRATORS], response_model=api.Team, responses=errors(409))
    async def add_team(request: Request, new: _NewTeam) -> TeamRow:
        """Add a team; only for administrators."""
        return await people.add_team(new.name, new.sent(), actor_of(request.scope))

    @router.patch(f"{_TEAMS}/{{name}}", dependencies=[ADMINISTRATORS], response_model=api.Team, responses=errors(404))
    async def set_team(request: Request, name: Name, new: _TeamValues) -> TeamRow:
        """Change the values of a team that are sent; only for administrators."""
        return await people.set_team(name, new.sent(), actor_of(request.scope))

    @router.delete(f"{_TEAMS}/{{name}}", dependencies=[ADMINISTRATORS], responses=errors(404, 409))
    async def remove_team(request: Request, name: Name, force: _Force = "0") -> dict[str, str]:
        """Remove a team; only for administrators.

        Its people and jobs stay, and open jobs continue without its share.
        """
        # In no transaction with the removal: a job that is submitted in between continues like these.
        jobs = sum(job.team == name for job in await open_jobs())
        await people.remove_team(name, actor_of(request.scope), jobs, force == "1")
        return {"removed": name}

    return router


def token_routes(tokens: Tokens, check: TokenCheck, accounts: MlflowAccounts) -> APIRouter:
    """Return the routes below `/platform/tokens`.

    Args:
        tokens: tokens of people.
        check: counts wrong log-in codes.
        accounts: accounts of people at MLflow.
    """
    router = APIRouter()

    @router.post(TOKENS, dependencies=[OPEN], response_model=api.LoggedIn, responses=errors(403, 409))
    async def log_in(request: Request, response: Response, sent: _LogInCode) -> api.LoggedIn | Response:
        """Exchange a log-in code for a token; needs no token. A wrong code counts as a failed log-in."""
        try:
            issued = await tokens.exchange(sent.code, client_address(request.scope), sent.instead_of)
        except LoginCodeError as error:
            return await check.fail(str(error), request.scope, "code")
        password = await accounts.log_in(issued.person)
        response.headers["Cache-Control"] = "no-store"
        return api.LoggedIn(person=issued.person, token=issued.token, expires=issued.expires, mlflow_password=password)

    @router.get(TOKENS)
    async def list_tokens(principal: AnyPerson) -> api.Tokens:
        """The person's own tokens; all tokens for administrators."""
        found = await tokens.all(None if principal.administrator else principal.person)
        return api.Tokens(tokens=[api.Token.model_validate(token) for token in found])

    @router.delete(f"{TOKENS}/{{token_id}}", responses=errors(404))
    async def revoke(request: Request, principal: AnyPerson, token_id: _TokenId) -> dict[str, str]:
        """Revoke one of the person's own tokens; administrators may revoke any.

        It is refused from now on, also where it has opened a session or follows a log.
        """
        person = None if principal.administrator else principal.person
        await tokens.revoke(token_id, actor_of(request.scope), person, principal.token_id == token_id)
        await accounts.follow()
        return {"revoked": token_id}

    return router
