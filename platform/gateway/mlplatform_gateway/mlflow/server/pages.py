"""Guards around the MLflow server: foreign origins, its assistant and unquoted names; and its first page.

ASGI applications around MLflow's, because MLflow serves some of its routes by Flask and others past it.
"""

from __future__ import annotations

import hmac
import re
from importlib import resources
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse

from mlplatform.compat.mlflow_artifacts import FILES
from mlplatform.text.artifact_names import problem_of, sentence
from mlplatform_gateway.http.clients import foreign_origin

_ASSISTANT = re.compile(r"(/ajax-api|/api)/[0-9.]+/mlflow/assistant(/|$)")


def for_own_pages(app: Any) -> Any:
    """Return an ASGI application that refuses every request of pages of another origin, and MLflow's assistant.

    MLflow 3.17 accepts changes by any page of any port of `localhost`, with the browser's credentials, and its
    assistant runs commands as the server's user for whoever connects from loopback. No setting changes either.
    """

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        refusal = None
        if scope["type"] in ("http", "websocket"):
            if (origin := foreign_origin(scope["headers"])) is not None:
                refusal = f"Pages of {origin!r} may not use MLflow; open its own address."
            elif _ASSISTANT.match(scope["path"]):
                refusal = "MLflow's assistant is off here, because it runs commands on the server."
            # MLflow refuses its own page at `mlflow.localhost`, and answers that of `localhost` with CORS headers.
            scope = {**scope, "headers": [item for item in scope["headers"] if item[0] != b"origin"]}
        await (PlainTextResponse(refusal, 403) if refusal else app)(scope, receive, send)

    return guarded


def with_password(app: Any, file: Path) -> Any:
    """Return an ASGI application that asks for the password in a file, except for `/health`; any user name will do."""
    from werkzeug.datastructures import Authorization

    password = file.read_bytes().strip()
    hint = f"Log in with any user name and the password in {file}."

    async def asking(scope: Any, receive: Any, send: Any) -> None:
        refusal = None
        if scope["type"] in ("http", "websocket") and scope["path"] != "/health":
            login = Authorization.from_header(Headers(scope=scope).get("authorization"))
            given = (login.password or "") if login else ""
            if not hmac.compare_digest(given.encode(), password):
                refusal = PlainTextResponse(hint, 401, {"WWW-Authenticate": 'Basic realm="MLflow"'})
        await (refusal or app)(scope, receive, send)

    return asking


def with_exact_names(app: Any) -> Any:
    """Return an ASGI application that refuses names of artifacts which a client has sent without quoting them.

    Clients without this package send `a?b` as `a` with a query, and `a%2Fb` as a file in a folder. What they send as
    `a` for `a#b` cannot be distinguished from `a`.
    """

    async def checked(scope: Any, receive: Any, send: Any) -> None:
        _, found, path = scope.get("path", "").partition(f"{FILES}/")
        unquoted = found and path and (scope["query_string"] or b"%2f" in scope["raw_path"].lower())
        problem = "has `?` or `%2F`; install mlplatform here, or rename the file" if unquoted else problem_of(path)
        error = {"error_code": "INVALID_PARAMETER_VALUE", "message": sentence(path, problem or "")}
        await (JSONResponse(error, 400) if problem else app)(scope, receive, send)

    return checked


def opening_on_training(app: Any) -> Any:
    """Return an ASGI application whose page opens on training in a browser that has not been there before.

    MLflow 3.17 has no setting for what its page shows first: the page keeps that in the browser, and its query
    `workflowType` is lost with the first click. So `/` is a page of ours (`first_page.html`), which sets what
    the browser has no value for, and then opens MLflow's by a query that it ignores.
    """
    page = resources.files("mlplatform_gateway.mlflow.server").joinpath("first_page.html").read_text()

    async def opening(scope: Any, receive: Any, send: Any) -> None:
        answer = app
        if scope["type"] == "http" and scope["path"] == "/" and not scope["query_string"]:
            headers = Headers(scope=scope)
            # A program gets MLflow's page, and a browser that has not logged in its question.
            if "text/html" in headers.get("accept", "") and "authorization" in headers:
                answer = HTMLResponse(page, headers={"Cache-Control": "no-store"})
        await answer(scope, receive, send)

    return opening
