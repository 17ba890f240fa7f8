"""The package as a wheel, so that a laptop installs the command line from the gateway that it will talk to.

No token is needed, because `pip` cannot send one in a header, and the package is public source.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from fastapi import APIRouter
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response

from mlplatform_gateway.http.access import OPEN
from mlplatform_gateway.http.auth import WHEELS


def routes(folder: Path | None) -> APIRouter:
    """Return the routes of the wheel and of the page that links it.

    People install it by its own address. By its name, `pip` could take another package of that name from its index.

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
