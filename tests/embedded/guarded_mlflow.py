"""A client of the stack's MLflow server, as the tests in `gateway/mlflow/` start it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import httpx

from mlplatform.files import checksums

PASSWORD = "a-long-password-"
FILES = "/api/2.0/mlflow-artifacts/artifacts"


class Server:
    """A running server, and what its clients do."""

    def __init__(self, address: str, log: Path, changes: list[dict[str, Any]]) -> None:
        self.address, self.log = address, log
        self.changes = changes
        """Changes that the server has reported to its gateway."""

    def send(self, user: str, method: str, path: str, values: Any = None, **options: Any) -> httpx.Response:
        """Send a request with the password of an account."""
        full = path if path.startswith("/") else f"/api/2.0/mlflow/{path}"
        sent = {} if values is None else {"params" if method == "GET" else "json": values}
        account = (user, PASSWORD + user)
        return httpx.request(method, self.address + full, **{"auth": account, "timeout": 60, **sent, **options})

    def call(self, user: str, method: str, path: str, values: Any = None) -> Any:
        answer = self.send(user, method, path, values)
        assert answer.is_success, answer.text
        return answer.json()

    def register(self, user: str, name: str) -> tuple[str, httpx.Response]:
        """Upload a file to a new run and register its folder; return the folder's path and the answer."""
        run = self.call(user, "POST", "runs/create", {"experiment_id": "0"})["run"]["info"]
        path = run["artifact_uri"].removeprefix("mlflow-artifacts:/").strip("/") + "/model"
        assert self.send(user, "PUT", f"{FILES}/{path}/data.pkl", content=b"weights").is_success
        sums = checksums.render({"data.pkl": hashlib.sha256(b"weights").hexdigest()}).encode()
        assert self.send(user, "PUT", f"{FILES}/{path}/SHA256SUMS", content=sums).is_success
        self.send(user, "POST", "registered-models/create", {"name": name})
        version = {"name": name, "source": f"mlflow-artifacts:/{path}", "run_id": run["run_id"]}
        return path, self.send(user, "POST", "model-versions/create", version)


def refused(answer: httpx.Response, sentence: str) -> bool:
    return answer.status_code == 403 and sentence in answer.text
