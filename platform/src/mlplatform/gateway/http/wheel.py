"""The package as a wheel, so that a laptop installs the command line from the gateway that it will talk to.

No token is needed, because `pip` cannot send one in a header, and the package is public source.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from fastapi import APIRouter, Depends
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response

from mlplatform.gateway.http.access import OPEN
from mlplatform.gateway.http.auth import WHEELS
from mlplatform.gateway.http.routing import router


def of_wheels(folder: Path | None) -> APIRouter:
    """Return the routes of the wheel and of the page that links it.

    People install it by its own address. By its name, `pip` could take another package of that name from its index.

    Args:
        folder: has the wheel; None if the gateway does not run in the platform's image.
    """
    routes = router(pages=True)

    @routes.get(WHEELS, dependencies=[Depends(OPEN)])
    async def index() -> Response:
        links = "".join(f'<a href="{escape(name)}">{escape(name)}</a><br>\n' for name in _found(folder))
        return HTMLResponse(f"<!DOCTYPE html>\n<title>mlplatform</title>\n{links}")

    @routes.get(f"{WHEELS}{{file}}", dependencies=[Depends(OPEN)])
    async def download(file: str) -> Response:
        found = _found(folder).get(file)
        if found is None:
            return PlainTextResponse(f"The gateway does not have this wheel; {WHEELS} lists those that it has.", 404)
        return FileResponse(found, media_type="application/zip")

    return routes


def _found(folder: Path | None) -> dict[str, Path]:
    return {} if folder is None else {path.name: path for path in sorted(folder.glob("*.whl"))}
