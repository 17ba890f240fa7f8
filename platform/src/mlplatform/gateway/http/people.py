"""Routes for people, teams and tokens, and the exchange of a log-in code for a token."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mlplatform.gateway.control.mlflow_accounts import MlflowAccounts
from mlplatform.gateway.control.people_key import FileKey, PeopleKey
from mlplatform.gateway.errors import LoginCodeError
from mlplatform.gateway.http import request_body
from mlplatform.gateway.http.auth import TOKENS, TokenCheck, actor_of, client_address, principal_of
from mlplatform.gateway.jobs.schema import JobRow
from mlplatform.gateway.people.schema import TeamRow, TokenRow
from mlplatform.gateway.people.store import DEFAULTS, People
from mlplatform.gateway.people.tokens import Tokens

PEOPLE, TEAMS = "/platform/people", "/platform/teams"

_BODY_BYTES = 16 << 10

_Amount = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _NewPerson(_Strict):
    """Fields of `People.add`."""

    name: str
    team: str | None = None
    lead: bool = False
    administrator: bool = False


class _Limits(_Strict):
    """Upper limits of a team or a person; a number that is not set means no limit."""

    gpus: _Amount | None = None
    cpus: _Amount | None = None
    running: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    waiting: Annotated[int, Field(ge=0, le=1_000_000)] | None = None


class _Caps(_Strict):
    team: _Limits = _Limits()
    person: _Limits = _Limits()


class _TeamValues(_Strict):
    """Columns of a team; those that are not sent keep their values."""

    share_gpus: _Amount = DEFAULTS["share_gpus"]
    share_cpus: _Amount = DEFAULTS["share_cpus"]
    weight: _Amount = DEFAULTS["weight"]
    caps: _Caps = _Caps()
    default_limit_s: Annotated[int, Field(ge=60, le=366 * 86400)] = DEFAULTS["default_limit_s"]
    idle_s: Annotated[int, Field(ge=0, le=366 * 86400)] = DEFAULTS["idle_s"]

    def values_sent(self) -> dict[str, Any]:
        return self.model_dump(include=self.model_fields_set & DEFAULTS.keys(), exclude_none=True, exclude_unset=True)


class _NewTeam(_TeamValues):
    name: str


class _Code(_Strict):
    """Fields of `Tokens.exchange`."""

    code: Annotated[str, Field(max_length=100)]
    instead_of: Annotated[str, Field(pattern=r"^([a-z0-9]{20})?$")] = ""


class PeopleRoutes:
    """Endpoints below `/platform/people`, `/platform/teams` and `/platform/tokens`; errors are plain text.

    Args:
        people: people and teams.
        tokens: tokens of people.
        check: counts wrong log-in codes.
        key: the S3 key of people; None without an object store.
        accounts: accounts of people at MLflow.
        open_jobs: returns the jobs that have not ended.
    """

    def __init__(
        self,
        people: People,
        tokens: Tokens,
        check: TokenCheck,
        key: FileKey | PeopleKey | None,
        accounts: MlflowAccounts,
        open_jobs: Callable[[], Awaitable[Sequence[JobRow]]],
    ) -> None:
        self._accounts = accounts
        self._people = people
        self._tokens = tokens
        self._check = check
        self._key = key
        self._open_jobs = open_jobs

    def routes(self) -> list[Route]:
        """Return all routes."""
        return [
            Route(PEOPLE, self._list_people, methods=["GET"]),
            Route(PEOPLE, self._add_person, methods=["POST"]),
            Route(f"{PEOPLE}/{{name}}", self._remove_person, methods=["DELETE"]),
            Route(TEAMS, self._list_teams, methods=["GET"]),
            Route(TEAMS, self._add_team, methods=["POST"]),
            Route(f"{TEAMS}/{{name}}", self._set_team, methods=["PATCH"]),
            Route(f"{TEAMS}/{{name}}", self._remove_team, methods=["DELETE"]),
            Route(TOKENS, self._log_in, methods=["POST"]),
            Route(TOKENS, self._list_tokens, methods=["GET"]),
            Route(f"{TOKENS}/{{token_id}}", self._revoke, methods=["DELETE"]),
        ]

    async def _list_people(self, _: Request) -> Response:
        found = [
            {
                "name": person.name,
                "administrator": person.administrator,
                "teams": dict(person.teams),
                "created": person.created.isoformat(),
            }
            for person in await self._people.people()
        ]
        return JSONResponse({"people": found})

    async def _add_person(self, request: Request) -> Response:
        """Add a person, or a team or rights to one, and respond with a log-in code."""
        new = await request_body.parsed(request.receive, _NewPerson, _BODY_BYTES)
        invited = await self._people.add(new.name, actor_of(request.scope), new.team, new.lead, new.administrator)
        return JSONResponse(
            {"name": new.name, "added": invited.added, "code": invited.code, "expires": invited.expires.isoformat()}
        )

    async def _remove_person(self, request: Request) -> Response:
        """Remove a person, or with `?team=` only from a team; say whether the platform replaces the S3 key itself."""
        name, team = request.path_params["name"], request.query_params.get("team")
        await self._people.remove(name, actor_of(request.scope), team)
        if team is None and self._key is not None:
            await self._key.follow()
        await self._accounts.follow()
        return JSONResponse({"removed": name, "s3_key_in_file": isinstance(self._key, FileKey)})

    async def _list_teams(self, _: Request) -> Response:
        return JSONResponse({"teams": [_team(team) for team in await self._people.teams()]})

    async def _add_team(self, request: Request) -> Response:
        new = await request_body.parsed(request.receive, _NewTeam, _BODY_BYTES)
        return JSONResponse(_team(await self._people.add_team(new.name, new.values_sent(), actor_of(request.scope))))

    async def _set_team(self, request: Request) -> Response:
        """Change the values that are sent."""
        values = (await request_body.parsed(request.receive, _TeamValues, _BODY_BYTES)).values_sent()
        return JSONResponse(
            _team(await self._people.set_team(request.path_params["name"], values, actor_of(request.scope)))
        )

    async def _remove_team(self, request: Request) -> Response:
        """Remove a team; one with open jobs, or whose people would be in no team, only with `?force=1`."""
        name, force = request.path_params["name"], request.query_params.get("force") == "1"
        # In no transaction with the removal: a job that is submitted in between continues like these.
        jobs = sum(job.team == name for job in await self._open_jobs())
        await self._people.remove_team(name, actor_of(request.scope), jobs, force)
        return JSONResponse({"removed": name})

    async def _log_in(self, request: Request) -> Response:
        """Exchange a log-in code for a token; a wrong code counts as a failed log-in."""
        sent = await request_body.parsed(request.receive, _Code, _BODY_BYTES)
        try:
            issued = await self._tokens.exchange(sent.code, client_address(request.scope), sent.instead_of)
        except LoginCodeError as error:
            return await self._check.fail(str(error), request.scope, "code")
        answer: dict[str, Any] = {"person": issued.person, "token": issued.token, "expires": issued.expires.isoformat()}
        answer["mlflow_password"] = await self._accounts.log_in(issued.person)
        return JSONResponse(answer, headers={"Cache-Control": "no-store"})

    async def _list_tokens(self, request: Request) -> Response:
        """Respond with the person's own tokens; with all to administrators."""
        principal = principal_of(request.scope)
        found = await self._tokens.all(None if principal.administrator else principal.person)
        return JSONResponse({"tokens": [_token(token) for token in found]})

    async def _revoke(self, request: Request) -> Response:
        """Revoke one of the person's own tokens; an administrator may revoke any."""
        principal, token_id = principal_of(request.scope), request.path_params["token_id"]
        person = None if principal.administrator else principal.person
        await self._tokens.revoke(token_id, actor_of(request.scope), person, principal.token_id == token_id)
        await self._accounts.follow()
        return JSONResponse({"revoked": token_id})


def _team(team: TeamRow) -> dict[str, Any]:
    return {"name": team.name, **{column: getattr(team, column) for column in DEFAULTS}}


def _token(token: TokenRow) -> dict[str, Any]:
    moments = {name: getattr(token, name) for name in ("created", "expires", "revoked", "used")}
    return {
        "id": token.id,
        "kind": token.kind,
        "owner": token.owner,
        **{name: moment and moment.isoformat() for name, moment in moments.items()},
    }
