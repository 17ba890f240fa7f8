"""Routes on which a browser logs in with the token and out again.

`POST /api/authenticate` is the one of Ray's dashboard; status codes and texts are those of
`ray/dashboard/http_server_head.py` in Ray 2.60, which however puts the token itself into the cookie.
"""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response

from mlplatform_gateway.http.access import OPEN
from mlplatform_gateway.http.auth import COOKIE, INVALID, LOGIN, LOGIN_PAGE, LOGOUT, TokenCheck, actor_of
from mlplatform_gateway.people.sessions import LIFETIME, Sessions


def routes(check: TokenCheck, sessions: Sessions) -> APIRouter:
    """Return the routes `POST /api/authenticate` and `POST /platform/logout`."""
    router = APIRouter(dependencies=[OPEN], include_in_schema=False)

    @router.post(LOGIN)
    async def log_in(request: Request) -> Response:
        """Accept the token in the header `Authorization` and set a cookie with a new session: 401 and 403 without."""
        opened = await open_session(check, sessions, request.headers.get("authorization", ""), request)
        if isinstance(opened, Response):
            return opened
        response = JSONResponse({"status": "authenticated", "message": "Token is valid"})
        set_session(response, request, opened)
        return response

    @router.post(LOGOUT)
    async def log_out(request: Request) -> Response:
        """End the session of the cookie, delete the cookie, and go to the login page."""
        if session_id := request.cookies.get(COOKIE):
            await sessions.close(session_id, replace(actor_of(request.scope), kind="session"))
        response = RedirectResponse(LOGIN_PAGE, 303)
        response.delete_cookie(COOKIE)
        return response

    return router


async def open_session(check: TokenCheck, sessions: Sessions, given: str, request: Request) -> str | PlainTextResponse:
    """Return the id of a new session of the one whose token is given, or the refusal.

    Args:
        check: check of the token.
        sessions: sessions of browsers.
        given: the credential, `Bearer <token>`; services and attempts have no sessions.
        request: the log-in.
    """
    found = await check.authenticate(given, request.scope)
    if isinstance(found, PlainTextResponse):
        return found
    if found.service or found.attempt:
        return await check.fail(INVALID, request.scope, "token")
    return await sessions.open(actor_of(request.scope, found), found.token_id)


def set_session(response: Response, request: Request, session_id: str) -> None:
    """Add the session's cookie, which no script can read and no other site's page sends along."""
    secure = request.url.scheme == "https"
    lifetime = int(LIFETIME.total_seconds())
    response.set_cookie(COOKIE, session_id, max_age=lifetime, secure=secure, httponly=True, samesite="strict")
