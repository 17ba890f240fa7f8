"""Routes of the front page: the page, its live updates, login, links to a job's run and model; and the wheel."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from html import escape
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from jinja2 import Environment, PackageLoader
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from mlplatform.errors import UnreachableError
from mlplatform_gateway.http import request_body
from mlplatform_gateway.http.access import OPEN, USERS, of_job
from mlplatform_gateway.http.auth import FRONT_PAGE, INVALID, LOGIN_PAGE, STATIC, WHEELS, TokenCheck, principal_of
from mlplatform_gateway.jobs.housekeeping import JobRuns
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.jobs.store import RUNNING_MESSAGE
from mlplatform_gateway.jobs.views import hide_from
from mlplatform_gateway.mlflow.client import JobPages
from mlplatform_gateway.pages.view import FrontPage
from mlplatform_gateway.people.api import open_session, set_session
from mlplatform_gateway.people.rights import Verb
from mlplatform_gateway.people.sessions import Sessions
from mlplatform_gateway.settings import Tool

_PACKAGE = "mlplatform_gateway.pages"

_TEMPLATES = Environment(loader=PackageLoader(_PACKAGE, "templates"), autoescape=True)

_TEMPLATES.globals["RUNNING_MESSAGE"] = RUNNING_MESSAGE

_UPDATE_SECONDS = 2.0
_FORM_BYTES = 4 << 10

_HEADERS = {"Cache-Control": "no-store"}

_Job = Annotated[JobRow, of_job(Verb.METADATA)]


def routes(page: FrontPage, check: TokenCheck, sessions: Sessions) -> APIRouter:
    """Return the routes of the page, its live updates, and the log-in."""
    router = APIRouter(include_in_schema=False)

    @router.get(FRONT_PAGE, dependencies=[USERS])
    async def show(request: Request) -> Response:
        return _html("page.html", content=await _content(page, request))

    @router.get("/platform/live", dependencies=[USERS])
    async def live(request: Request) -> Response:
        """Send the page's content as server-sent events, whenever it has changed."""
        return StreamingResponse(_events(page, request), media_type="text/event-stream", headers=_HEADERS)

    @router.get(LOGIN_PAGE, dependencies=[OPEN])
    async def form() -> Response:
        return _html("login.html")

    @router.post(LOGIN_PAGE, dependencies=[OPEN])
    async def log_in(request: Request) -> Response:
        """Open a session for the form's token and go to the page; the form with 401 or 403 for a wrong token."""
        body = await request_body.whole(request.receive, _FORM_BYTES, "send the token alone")
        token = parse_qs(body.decode("utf-8", "replace")).get("token", [""])[0].strip()
        opened = await open_session(check, sessions, f"Bearer {token}", request)
        if isinstance(opened, Response):
            text = bytes(opened.body).decode()
            problem = "This token is wrong; copy it without spaces." if text.startswith(INVALID) else text
            return _html("login.html", opened.status_code, problem=problem)
        response = RedirectResponse(FRONT_PAGE, 303)
        set_session(response, request, opened)
        return response

    return router


def mlflow_routes(runs: JobRuns, pages: JobPages | None, mlflow: Tool | None) -> APIRouter:
    """Return the routes that lead to a job's pages at MLflow.

    Args:
        runs: record of the jobs' runs.
        pages: finds a job's pages; None without MLflow.
        mlflow: MLflow's page; None without one.
    """
    router = APIRouter(include_in_schema=False)

    async def lead(
        request: Request, job: JobRow, find: Callable[[JobPages, list[str]], Awaitable[str | None]], missing: str
    ) -> Response:
        if pages and mlflow:
            ids = [run.run_id for run in await runs.of(job.id)]
            if page := await find(pages, ids):
                return RedirectResponse(f"{_address(request, mlflow)}/{page}", 303)
        return PlainTextResponse(f"Job {job.id} {missing}.", 404)

    @router.get("/platform/jobs/{job_id}/run")
    async def run(request: Request, job: _Job) -> Response:
        return await lead(request, job, JobPages.run, "has no run at MLflow")

    @router.get("/platform/jobs/{job_id}/model")
    async def model(request: Request, job: _Job) -> Response:
        return await lead(request, job, JobPages.model, "has logged no model")

    return router


def static_files() -> Mount:
    """Return the style and the scripts of the pages."""
    return Mount(STATIC, StaticFiles(packages=[(_PACKAGE, "static")]))


async def _events(page: FrontPage, request: Request) -> AsyncIterator[str]:
    sent = None
    while True:
        content = await _content(page, request)
        # A comment while nothing changes: it finds browsers that are gone.
        yield f"data: {json.dumps(content)}\n\n" if content != sent else ":\n\n"
        sent = content
        await asyncio.sleep(_UPDATE_SECONDS)


async def _content(page: FrontPage, request: Request) -> str:
    try:
        view = await page.view()
    except UnreachableError as error:
        problem = f"{await page.full_disk()} {error}".strip()
        return _TEMPLATES.get_template("problem.html").render(problem=problem)
    hide_from(principal_of(request.scope), view.jobs)
    return _TEMPLATES.get_template("content.html").render(view=view, address=partial(_address, request))


def _address(request: Request, tool: Tool) -> str:
    """Return the address of a tool's page, with a name of its own where the browser resolves it, for its own cookies.

    Otherwise, it has the name by which the browser reaches this host, be it by way of a forwarded port.
    """
    host, agent = request.url.hostname or "", request.headers.get("user-agent", "")
    resolves = "Safari" not in agent or "Chrom" in agent  # Safari does not resolve names below `localhost`
    if tool.name and host.startswith("ray."):
        host = f"{tool.name}.{host.removeprefix('ray.')}"
    elif tool.name and host in ("localhost", "127.0.0.1") and request.url.scheme == "http" and resolves:
        host = f"{tool.name}.localhost"
    return f"{request.url.scheme}://{host}:{tool.port}"


def _html(template: str, status: int = 200, **values: Any) -> Response:
    return HTMLResponse(_TEMPLATES.get_template(template).render(**values), status, _HEADERS)


def wheel_routes(folder: Path | None) -> APIRouter:
    """Return the routes of the wheel and of the page that links it.

    No token is needed, because `pip` cannot send one in a header, and the package is public source. People install it
    by its own address. By its name, `pip` could take another package of that name from its index.

    Args:
        folder: has the wheel; None if the gateway does not run in the platform's image.
    """

    router = APIRouter(dependencies=[OPEN], include_in_schema=False)

    @router.get(WHEELS)
    async def index() -> Response:
        links = "".join(f'<a href="{escape(name)}">{escape(name)}</a><br>\n' for name in _found(folder))
        return HTMLResponse(f"<!DOCTYPE html>\n<title>mlplatform</title>\n{links}")

    @router.get(f"{WHEELS}{{file}}")
    async def download(file: str) -> Response:
        found = _found(folder).get(file)
        if found is None:
            return PlainTextResponse(f"The gateway does not have this wheel; {WHEELS} lists those that it has.", 404)
        return FileResponse(found, media_type="application/zip")

    return router


def _found(folder: Path | None) -> dict[str, Path]:
    return {} if folder is None else {path.name: path for path in sorted(folder.glob("*.whl"))}
