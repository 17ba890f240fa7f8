"""Routes for people and teams."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from mlplatform.api import people as api
from mlplatform.api.base import Name
from mlplatform.gateway.control.mlflow_accounts import MlflowAccounts
from mlplatform.gateway.control.people_key import FileKey, PeopleKey
from mlplatform.gateway.http.access import Administrator, AnyPerson
from mlplatform.gateway.http.auth import actor_of
from mlplatform.gateway.http.description import errors
from mlplatform.gateway.http.routing import JsonBody, router
from mlplatform.gateway.people.schema import TeamRow
from mlplatform.gateway.people.store import People

PEOPLE, TEAMS = "/platform/people", "/platform/teams"


def of_people(people: People, key: FileKey | PeopleKey | None, accounts: MlflowAccounts) -> APIRouter:
    """Return the routes below `/platform/people`.

    Args:
        people: people and teams.
        key: the S3 key of people; None without an object store.
        accounts: accounts of people at MLflow.
    """
    routes = router()

    @routes.get(PEOPLE)
    async def list_people(_: AnyPerson) -> api.People:
        """People with their teams."""
        return api.People(people=list(await people.people()))

    @routes.post(PEOPLE, responses=errors(404, 409))
    async def add_person(
        request: Request, _: Administrator, new: Annotated[api.NewPerson, Depends(JsonBody(api.NewPerson))]
    ) -> api.Invited:
        """Add a person, or add a team or rights to one; only for administrators."""
        return await people.add(new.name, actor_of(request.scope), new.team, new.lead, new.administrator)

    @routes.delete(f"{PEOPLE}/{{name}}", responses=errors(404))
    async def remove_person(
        request: Request,
        _: Administrator,
        name: Name,
        team: Annotated[str | None, Query(description="Remove only from this team.")] = None,
    ) -> api.RemovedPerson:
        """Remove a person and revoke all tokens, or remove the person from one team; only for administrators.

        Jobs of the person stay.
        """
        await people.remove(name, actor_of(request.scope), team)
        if team is None and key is not None:
            await key.follow()
        await accounts.follow()
        return api.RemovedPerson(removed=name, s3_key_in_file=isinstance(key, FileKey))

    return routes


def of_teams(people: People) -> APIRouter:
    """Return the routes below `/platform/teams`."""
    routes = router()

    @routes.get(TEAMS)
    async def list_teams(_: AnyPerson) -> api.Teams:
        """Teams with their shares."""
        return api.Teams.model_validate({"teams": await people.teams()})

    @routes.post(TEAMS, response_model=api.Team, responses=errors(409))
    async def add_team(
        request: Request, _: Administrator, new: Annotated[api.NewTeam, Depends(JsonBody(api.NewTeam))]
    ) -> TeamRow:
        """Add a team; only for administrators."""
        return await people.add_team(new.name, new.sent(), actor_of(request.scope))

    @routes.patch(f"{TEAMS}/{{name}}", response_model=api.Team, responses=errors(404))
    async def set_team(
        request: Request,
        _: Administrator,
        name: Name,
        new: Annotated[api.TeamValues, Depends(JsonBody(api.TeamValues))],
    ) -> TeamRow:
        """Change the values of a team that are sent; only for administrators."""
        return await people.set_team(name, new.sent(), actor_of(request.scope))

    return routes
