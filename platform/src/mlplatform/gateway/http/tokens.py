"""Routes for tokens of people, and the exchange of a log-in code for one."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request, Response

from mlplatform.api import people as api
from mlplatform.gateway.control.mlflow_accounts import MlflowAccounts
from mlplatform.gateway.errors import LoginCodeError
from mlplatform.gateway.http.access import OPEN, AnyPerson
from mlplatform.gateway.http.auth import TOKENS, TokenCheck, actor_of, client_address
from mlplatform.gateway.http.description import errors
from mlplatform.gateway.http.routing import JsonBody, router
from mlplatform.gateway.people.tokens import Tokens

_TokenId = Annotated[str, Path(json_schema_extra={"pattern": "^[a-z0-9]{20}$"})]


def of_tokens(tokens: Tokens, check: TokenCheck, accounts: MlflowAccounts) -> APIRouter:
    """Return the routes below `/platform/tokens`.

    Args:
        tokens: tokens of people.
        check: counts wrong log-in codes.
        accounts: accounts of people at MLflow.
    """
    routes = router()

    @routes.post(TOKENS, dependencies=[Depends(OPEN)], response_model=api.LoggedIn, responses=errors(403, 409))
    async def log_in(
        request: Request, response: Response, sent: Annotated[api.LogInCode, Depends(JsonBody(api.LogInCode))]
    ) -> Any:
        """Exchange a log-in code for a token; needs no token."""
        try:
            issued = await tokens.exchange(sent.code, client_address(request.scope), sent.instead_of)
        except LoginCodeError as error:
            return await check.fail(str(error), request.scope, "code")
        response.headers["Cache-Control"] = "no-store"
        password = await accounts.log_in(issued.person)
        return api.LoggedIn(person=issued.person, token=issued.token, expires=issued.expires, mlflow_password=password)

    @routes.get(TOKENS)
    async def list_tokens(principal: AnyPerson) -> api.Tokens:
        """The person's own tokens; all tokens for administrators."""
        found = await tokens.all(None if principal.administrator else principal.person)
        return api.Tokens.model_validate({"tokens": found})

    @routes.delete(f"{TOKENS}/{{token_id}}", responses=errors(404))
    async def revoke(request: Request, principal: AnyPerson, token_id: _TokenId) -> dict[str, str]:
        """Revoke one of the person's own tokens; administrators may revoke any.

        It is refused from now on, also where it has opened a session or follows a log.
        """
        person = None if principal.administrator else principal.person
        await tokens.revoke(token_id, actor_of(request.scope), person, principal.token_id == token_id)
        await accounts.follow()
        return {"revoked": token_id}

    return routes
