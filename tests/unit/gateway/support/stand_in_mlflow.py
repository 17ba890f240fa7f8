"""MLflow's REST interface for accounts, versions of models and their files, in memory."""

import base64
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

API, FILES = "/api/2.0/mlflow", "/api/2.0/mlflow-artifacts/artifacts"


class StandInMlflow:
    """Accounts with passwords, versions as MLflow describes them, and files by path."""

    def __init__(self, administrator: str, password: str) -> None:
        self.passwords = {administrator: password, "job": "password of jobs"}
        self.administrator = administrator
        self.versions: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.app = Starlette(
            routes=[
                Route(f"{API}/users/current", self._current, methods=["GET"]),
                Route(f"{API}/users/list", self._list, methods=["GET"]),
                Route(f"{API}/users/create", self._create, methods=["POST"]),
                Route(f"{API}/users/update-password", self._update, methods=["PATCH"]),
                Route(f"{API}/users/delete", self._delete, methods=["DELETE"]),
                Route(f"{API}/model-versions/search", self._search, methods=["GET"]),
                Route(f"{API}/model-versions/get-download-uri", self._location, methods=["GET"]),
                Route(FILES, self._folder, methods=["GET"]),
                Route(f"{FILES}/{{path:path}}", self._file, methods=["GET"]),
            ]
        )

    def register(self, name: str, files: dict[str, bytes], created: int = 1) -> str:
        """Add a version with files; return its source."""
        number = str(1 + sum(version["name"] == name for version in self.versions))
        folder = f"1/models/m-{name}-{number}/artifacts"
        self.files |= {f"{folder}/{path}": content for path, content in files.items()}
        source = f"models:/m-{name}-{number}"
        version = {"name": name, "version": number, "source": source, "creation_timestamp": created, "folder": folder}
        self.versions.append(version)
        return source

    def _sender(self, request: Request, administrates: bool = True) -> str | None:
        """The account of a request, if its password is right and its rights suffice."""
        self.requests.append((request.method, request.url.path))
        given = request.headers.get("authorization", "").removeprefix("Basic ")
        name, _, password = base64.b64decode(given).decode().partition(":")
        right = self.passwords.get(name) == password and (name == self.administrator or not administrates)
        return name if right else None

    async def _current(self, request: Request) -> Response:
        name = self._sender(request, administrates=False)
        return JSONResponse({"user": {"username": name}}) if name else Response(status_code=401)

    async def _list(self, request: Request) -> Response:
        if not self._sender(request):
            return Response(status_code=401)
        return JSONResponse({"users": [{"username": name} for name in self.passwords]})

    async def _create(self, request: Request) -> Response:
        values = await request.json()
        if not self._sender(request) or values["username"] in self.passwords:
            return Response(status_code=401)
        self.passwords[values["username"]] = values["password"]
        return JSONResponse({"user": {"username": values["username"]}})

    async def _update(self, request: Request) -> Response:
        values = await request.json()
        if not self._sender(request) or values["username"] not in self.passwords:
            return Response(status_code=401)
        self.passwords[values["username"]] = values["password"]
        return JSONResponse({})

    async def _delete(self, request: Request) -> Response:
        values = await request.json()
        if not self._sender(request):
            return Response(status_code=401)
        del self.passwords[values["username"]]
        return JSONResponse({})

    async def _search(self, request: Request) -> Response:
        return JSONResponse({"model_versions": self.versions} if self._sender(request) else {}, 200)

    async def _location(self, request: Request) -> Response:
        asked = request.query_params
        for version in self.versions:
            if (version["name"], version["version"]) == (asked["name"], asked["version"]):
                here = "folder" in version
                uri = f"mlflow-artifacts:/{version['folder']}" if here else version["source"]
                return JSONResponse({"artifact_uri": uri})
        return JSONResponse({"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no such version"}, 404)

    async def _folder(self, request: Request) -> Response:
        prefix = request.query_params["path"].strip("/") + "/"
        below = [path.removeprefix(prefix) for path in self.files if path.startswith(prefix)]
        entries = {path.partition("/")[0]: "/" in path for path in below}
        return JSONResponse({"files": [{"path": name, "is_dir": is_dir} for name, is_dir in entries.items()]})

    async def _file(self, request: Request) -> Response:
        content = self.files.get(request.path_params["path"])
        return PlainTextResponse(content) if content is not None else JSONResponse({"error_code": "X"}, 404)
