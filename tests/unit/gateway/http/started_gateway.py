"""The whole gateway on SQLite and folders, without a Ray head, and logs of process starts as nodes write them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from ray_head import AUTHORIZED, BOUND_S, CLUSTER_TOKEN, NO_TLS, TOKEN, served
from stored import database_in

from mlplatform.gateway.app import create_app
from mlplatform.gateway.jobs.states import Outcome, Verdict
from mlplatform.gateway.jobs.store import JobStore
from mlplatform.gateway.jobs.submission import Submission
from mlplatform.settings.gateway import GatewaySettings

LOG = "starts-0123456789abcdef.jsonl"
METRICS_TOKEN = "metrics" * 5
SHIPPER_TOKEN = "shipper" * 5
S3_PORT = 9900
"""Port at which people reach the object store."""


def line(cold: str | None = None, role: str = "worker", attempt: object = "1", job: object = "mine") -> bytes:
    """A line of a log of starts."""
    return json.dumps({"job": job, "attempt": attempt, "role": role, "cold": cold}).encode() + b"\n"


@dataclass
class StartedGateway:
    """A gateway's files, which outlive its processes, and a client of the one that runs."""

    folder: Path
    head: str
    metrics_token: bool = True
    disk_reserve: float = 0
    backups: Path | None = None
    backup_hours: float | None = None
    shipper_token: bool = False
    prometheus: bool = False
    secrets_key: str | None = None
    wheels: Path | None = None
    s3: tuple[str, str, str] | None = None
    """Address of MinIO, and name and secret of the account below which people get keys."""

    s3_external: str | None = None

    def __post_init__(self) -> None:
        (self.folder / "files").mkdir()
        (self.folder / "ray_token").write_text(TOKEN)
        (self.folder / "cluster_token").write_text(CLUSTER_TOKEN)
        (self.folder / "metrics_token").write_text(METRICS_TOKEN)
        (self.folder / "shipper_token").write_text(SHIPPER_TOKEN)
        self.store = JobStore(database_in(self.folder))

    def settings(self) -> GatewaySettings:
        """The settings with which the gateway is served."""
        return GatewaySettings.load(
            head=self.head,
            head_agent=self.head,
            token_path=self.folder / "ray_token",
            cluster_token_path=self.folder / "cluster_token",
            metrics_token_path=self.folder / "metrics_token" if self.metrics_token else None,
            database=f"sqlite:///{self.folder}/gateway.db",
            files=str(self.folder / "files"),
            disk_reserve=self.disk_reserve,
            backups=self.backups,
            backup_hours=self.backup_hours,
            shipper_token_path=self.folder / "shipper_token" if self.shipper_token else None,
            wheels=self.wheels,
            secrets_key_path=self._secrets_key_path(),
            s3_endpoint=self.s3[0] if self.s3 else None,
            s3_external=self.s3_external,
            s3_port=S3_PORT,
            people_account=self._people_account(),
            prometheus=self.head,
            prometheus_password_path=self.folder / "metrics_token" if self.prometheus else None,
        )

    def _secrets_key_path(self) -> Path | None:
        if self.secrets_key is None:
            return None
        path = self.folder / "secrets_key"
        path.write_text(self.secrets_key)
        return path

    def _people_account(self) -> Path | None:
        if self.s3 is None:
            return None
        path = self.folder / "minio_people"
        path.write_text("[default]\naws_access_key_id = {1}\naws_secret_access_key = {2}\n".format(*self.s3))
        return path

    @contextmanager
    def running(self) -> Iterator[httpx.Client]:
        """Serve the gateway; each call is a start of it."""
        with (
            served(create_app(self.settings())) as address,
            httpx.Client(base_url=address, headers=AUTHORIZED, timeout=BOUND_S, verify=NO_TLS) as client,
        ):
            yield client

    def add(self, job_id: str = "mine", attempts: int = 1, entrypoint: str = "true", **fields: Any) -> None:
        """Store a job with attempts, of which the last one runs; `fields` are others of the submission."""
        submission = Submission.model_validate({"entrypoint": entrypoint, "submission_id": job_id, **fields})
        asyncio.run(self.store.add(submission.job()))
        for number in range(1, attempts + 1):
            assert asyncio.run(self.store.begin_attempt(job_id))
            if number < attempts:
                self.end(Outcome.LOST, job_id, number)

    def end(self, outcome: Outcome = Outcome.SUCCEEDED, job_id: str = "mine", number: int = 1) -> None:
        """End an attempt."""
        assert asyncio.run(self.store.end_attempt(job_id, number, Verdict(outcome, "It ended."), None, False))


def put(client: httpx.Client, offset: int, body: bytes, node: str = "ray-worker-0", file: str = LOG) -> tuple[int, int]:
    """Send bytes of a log; return the status and the offset that the gateway expects next."""
    answer = client.put(f"/platform/starts/{node}/{file}", params={"offset": offset}, content=body)
    return answer.status_code, answer.json()["expected"]


def starts(client: httpx.Client, job_id: str = "mine") -> list[list[dict[str, Any]]]:
    """The starts of each attempt of a job."""
    return [attempt["starts"] for attempt in client.get(f"/platform/jobs/{job_id}").json()["attempts"]]


def start(count: int, reason: str | None = None, role: str = "worker") -> dict[str, Any]:
    """An element of `starts`."""
    return {"role": role, "reason": reason, "count": count}
