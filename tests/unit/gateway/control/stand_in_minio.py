"""A stand-in for MinIO's admin API for access keys, which decrypts and encrypts as MinIO does."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any

from minio import crypto
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

ACCOUNT, SECRET = "attempts", "a secret of the account"

ADMIN = "/minio/admin/v3"


@dataclass
class StandInMinio:
    """MinIO with access keys; `users` has those of other accounts."""

    keys: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    status: int | None = None
    """Answer to every request, if set."""

    code: str = "SlowDownWrite"
    users: dict[str, list[str]] = field(default_factory=dict)
    may_change: bool = True
    """False: the account may not change keys."""

    @property
    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route(f"{ADMIN}/add-service-account", self._add, methods=["PUT"]),
                Route(f"{ADMIN}/update-service-account", self._update, methods=["POST"]),
                Route(f"{ADMIN}/delete-service-account", self._delete, methods=["DELETE"]),
                Route(f"{ADMIN}/list-service-accounts", self._list),
                Route(f"{ADMIN}/list-users", self._users),
            ]
        )

    async def _add(self, request: Request) -> Response:
        body = json.loads(decrypted(await request.body()))
        if refusal := self._refusal(request):
            return refusal
        if body["accessKey"] in self.keys:
            return _error(400, "XMinioIAMServiceAccountNotAllowed")
        self.keys[body["accessKey"]] = body
        return self._encrypted({"credentials": {"accessKey": body["accessKey"], "secretKey": body["secretKey"]}})

    async def _update(self, request: Request) -> Response:
        body = json.loads(decrypted(await request.body()))
        if refusal := self._refusal(request):
            return refusal
        if not self.may_change:
            return _error(403, "AccessDenied")
        if request.query_params["accessKey"] not in self.keys:
            return _error(404, "XMinioInvalidIAMCredentials")
        changed = {"policy": body["newPolicy"], "description": body["newDescription"]}
        self.keys[request.query_params["accessKey"]] |= changed
        return Response(status_code=204)

    async def _delete(self, request: Request) -> Response:
        if refusal := self._refusal(request):
            return refusal
        if self.keys.pop(request.query_params["accessKey"], None) is None:
            return _error(404, "XMinioInvalidIAMCredentials")
        return Response(status_code=204)

    async def _list(self, request: Request) -> Response:
        if refusal := self._refusal(request):
            return refusal
        user = request.query_params["user"]
        keys = self.keys if user == ACCOUNT else {name: {} for name in self.users.get(user, [])}
        listed = [{"accessKey": name, "description": key.get("description", "")} for name, key in keys.items()]
        return self._encrypted({"accounts": listed or None})

    async def _users(self, request: Request) -> Response:
        return self._refusal(request) or self._encrypted({name: {} for name in (ACCOUNT, *self.users)})

    def _refusal(self, request: Request) -> Response | None:
        self.requests.append(f"{request.method} {request.url.path.removeprefix(f'{ADMIN}/')}")
        found = re.search(r"Credential=([^/]+)/", request.headers["Authorization"])
        if found is None or found[1] != ACCOUNT:
            return _error(403, "InvalidAccessKeyId")
        return _error(self.status, self.code) if self.status else None

    def _encrypted(self, content: Any) -> Response:
        return Response(crypto.encrypt(json.dumps(content).encode(), SECRET))


def _error(status: int, code: str) -> Response:
    return JSONResponse({"Code": code, "Message": "..."}, status)


def decrypted(message: bytes) -> bytes:
    """Decrypt a message of one chunk, as `DecryptData` of madmin-go does."""
    salt, algorithm, nonce, content = message[:32], message[32], message[33:41], message[41:]
    assert algorithm == 2, "not PBKDF2 with AES-GCM"
    key = hashlib.pbkdf2_hmac("sha256", SECRET.encode(), salt, 8192, 32)
    cipher = crypto._get_cipher(0, key, nonce + (1).to_bytes(4, "little"))
    cipher.update(crypto._mark_as_last(crypto._generate_additional_data(0, key, nonce + bytes(4))))
    return bytes(cipher.decrypt_and_verify(content[:-16], content[-16:]))
