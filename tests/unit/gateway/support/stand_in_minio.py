"""A stand-in for MinIO's admin API for access keys, which decrypts and encrypts as MinIO does."""

import hashlib
import io
import json
import re
from dataclasses import dataclass, field
from typing import Any

from minio import crypto
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

ACCOUNT, SECRET = "gateway", "a secret of the account"

ADMIN = "/minio/admin/v3"


class _Body(io.BytesIO):
    """Body of a request, as `minio.crypto` reads that of a response."""

    def release_conn(self) -> None:
        pass


@dataclass
class StandInMinio:
    """MinIO with access keys below one account."""

    keys: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    status: int | None = None
    """Answer to every request, if set."""

    secret: str = SECRET

    def __post_init__(self) -> None:
        # Argon2id takes 0.1 s of CPU time and 64 MiB for each message, at both ends.
        crypto._generate_key = _cheap_key  # type: ignore[attr-defined]

    @property
    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route(f"{ADMIN}/add-service-account", self._add, methods=["PUT"]),
                Route(f"{ADMIN}/delete-service-account", self._delete, methods=["DELETE"]),
                Route(f"{ADMIN}/list-service-accounts", self._list),
            ]
        )

    async def _add(self, request: Request) -> Response:
        if refusal := self._refusal(request):
            return refusal
        body = json.loads(crypto.decrypt(_Body(await request.body()), self.secret))  # type: ignore[arg-type]
        if body["accessKey"] in self.keys:
            return _error(400, "XMinioIAMServiceAccountNotAllowed")
        self.keys[body["accessKey"]] = body
        return self._encrypted({"credentials": {"accessKey": body["accessKey"], "secretKey": body["secretKey"]}})

    async def _delete(self, request: Request) -> Response:
        if refusal := self._refusal(request):
            return refusal
        if self.keys.pop(request.query_params["accessKey"], None) is None:
            return _error(404, "XMinioInvalidIAMCredentials")
        return Response(status_code=204)

    async def _list(self, request: Request) -> Response:
        if refusal := self._refusal(request):
            return refusal
        assert request.query_params["user"] == ACCOUNT
        return self._encrypted({"accounts": [{"accessKey": name} for name in self.keys] or None})

    def _refusal(self, request: Request) -> Response | None:
        self.requests.append(f"{request.method} {request.url.path.removeprefix(f'{ADMIN}/')}")
        found = re.search(r"Credential=([^/]+)/", request.headers["Authorization"])
        if found is None or found[1] != ACCOUNT:
            return _error(403, "InvalidAccessKeyId")
        return _error(self.status, "SlowDownWrite") if self.status else None

    def _encrypted(self, content: Any) -> Response:
        return Response(crypto.encrypt(json.dumps(content).encode(), self.secret))


def _cheap_key(password: bytes, salt: bytes) -> bytes:
    return hashlib.sha256(password + salt).digest()


def _error(status: int, code: str) -> Response:
    return JSONResponse({"Code": code, "Message": "..."}, status)
