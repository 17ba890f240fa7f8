"""The whole gateway on SQLite and folders, without a Ray head."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
from ray_head import AUTHORIZED, BOUND_S, CLUSTER_TOKEN, NO_TLS, TOKEN, served
from sqlalchemy import update
from sqlalchemy.orm import Session
from stored import database_in

from mlplatform.secrets.credentials import write_mlflow_account
from mlplatform_gateway.app import create_app
from mlplatform_gateway.jobs.attempt_tokens import AttemptTokens
from mlplatform_gateway.jobs.states import Outcome, Verdict
from mlplatform_gateway.jobs.store import JobStore
from mlplatform_gateway.jobs.submission import Submission
from mlplatform_gateway.settings import GatewaySettings
from mlplatform_gateway.usage.schema import UsageRow

PROMETHEUS_PASSWORD = "metrics" * 5
SHIPPER_TOKEN = "shipper" * 5
MLFLOW_PASSWORD = "password of the gateway at MLflow"
S3_PORT = 9900
"""Port at which people reach the object store."""


@dataclass
class StartedGateway:
    """A gateway's files, which outlive its processes, and a client of the one that runs."""

    folder: Path
    head: str
    disk_reserve_gb: float = 0
    driver_label: str | None = None
    backups: Path | None = None
    backup_hours: float | None = None
    shipper_token: bool = False
    prometheus: bool = True
    secrets_key: str | None = None
    wheels: Path | None = None
    s3: tuple[str, str, str] | None = None
    """Address of the object store, and name and secret of the gateway's account."""

    s3_endpoint_url: str = ""
    mlflow: str | None = None
    """Address of MLflow, where the gateway is an administrator."""

    def __post_init__(self) -> None:
        (self.folder / "files").mkdir()
        (self.folder / "ray_token").write_text(TOKEN)
        (self.folder / "cluster_token").write_text(CLUSTER_TOKEN)
        (self.folder / "prometheus_password").write_text(PROMETHEUS_PASSWORD)
        (self.folder / "shipper_token").write_text(SHIPPER_TOKEN)
        self.store = JobStore(database_in(self.folder))

    def settings(self) -> GatewaySettings:
        """The settings with which the gateway is served."""
        return GatewaySettings.load(
            head=self.head,
            head_agent=self.head,
            token_path=self.folder / "ray_token",
            cluster_token_path=self.folder / "cluster_token",
            database=f"sqlite:///{self.folder}/gateway.db",
            files=str(self.folder / "files"),
            disk_reserve_gb=self.disk_reserve_gb,
            driver_label=self.driver_label,
            backups=self.backups,
            backup_hours=self.backup_hours,
            shipper_token_path=self.folder / "shipper_token" if self.shipper_token else None,
            wheels=self.wheels,
            secrets_key_path=self._secrets_key_path(),
            object_store=self.s3[0] if self.s3 else None,
            s3_endpoint_url=self.s3_endpoint_url,
            s3_port=S3_PORT,
            tracking_uri=self.mlflow,
            tracking_account=self._tracking_account(),
            s3_credentials=self._s3_file("gateway", *self.s3[1:]) if self.s3 else None,
            people_key=self._s3_file("people", "people", "of people") if self.s3 else None,
            prometheus=self.head,
            prometheus_password_path=self.folder / "prometheus_password" if self.prometheus else None,
        )

    def _secrets_key_path(self) -> Path | None:
        if self.secrets_key is None:
            return None
        path = self.folder / "secrets_key"
        path.write_text(self.secrets_key)
        return path

    def _tracking_account(self) -> Path | None:
        if self.mlflow is None:
            return None
        path = self.folder / "mlflow_gateway"
        write_mlflow_account("gateway", MLFLOW_PASSWORD, path)
        return path

    def _s3_file(self, role: str, key: str, secret: str) -> Path:
        path = self.folder / f"s3_{role}"
        path.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")
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

    def attempt(self, person: str, job_id: str) -> str:
        """Begin the next attempt of a job of a person; return its token."""

        async def begun() -> str:
            attempt = await self.store.begin_attempt(job_id)
            assert attempt
            return await AttemptTokens(self.store.engine, "").issue(person, job_id, attempt.number)

        return asyncio.run(begun())

    def age(self, job_id: str, **span: float) -> None:
        """Let the attempts of a job begin earlier."""
        earlier = timedelta(**span) // timedelta(milliseconds=1)
        with Session(self.store.engine) as session, session.begin():
            its = update(UsageRow).where(UsageRow.job_id == job_id)
            session.execute(its.values(began=UsageRow.began - earlier))

    def end(self, outcome: Outcome = Outcome.SUCCEEDED, job_id: str = "mine", number: int = 1) -> None:
        """End an attempt."""
        assert asyncio.run(self.store.end_attempt(job_id, number, Verdict(outcome, "It ended."), None, False))
