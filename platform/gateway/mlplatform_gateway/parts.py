"""The gateway's parts: what its routes answer from and what its loops work with, made once from the settings."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mlplatform.secrets.credentials import TokenFile, read_mlflow_account, read_s3_account
from mlplatform.settings import job
from mlplatform.storage.objects import open_store
from mlplatform_gateway.audit.store import AuditLog
from mlplatform_gateway.dev.lab import Labs
from mlplatform_gateway.dev.pages import Visits
from mlplatform_gateway.http.access import LOG_SHIPPER, MLFLOW
from mlplatform_gateway.http.auth import TokenCheck, owner_of
from mlplatform_gateway.http.response_headers import RAY_PAGES, ResponseHeaders
from mlplatform_gateway.jobs.admission import Admission
from mlplatform_gateway.jobs.attempt_tokens import AttemptTokens
from mlplatform_gateway.jobs.housekeeping import JobRuns
from mlplatform_gateway.jobs.loop import Reconciler
from mlplatform_gateway.jobs.overview import JobOverview
from mlplatform_gateway.jobs.schedules import Schedules
from mlplatform_gateway.jobs.services import Services
from mlplatform_gateway.jobs.starting import Limits
from mlplatform_gateway.jobs.store import JobStore
from mlplatform_gateway.logs.store import JobLogs
from mlplatform_gateway.mlflow import client as mlflow
from mlplatform_gateway.mlflow.accounts import MlflowAccounts
from mlplatform_gateway.mlflow.digests import ModelDigests
from mlplatform_gateway.mlflow.rest import AsyncMlflowRest
from mlplatform_gateway.monitoring import metrics
from mlplatform_gateway.monitoring.disks import Disks
from mlplatform_gateway.monitoring.outages import Outages
from mlplatform_gateway.monitoring.ray_dashboard import Monitoring
from mlplatform_gateway.notify.loop import Messenger
from mlplatform_gateway.notify.sender import MailServer, MessageSender
from mlplatform_gateway.packages.store import Packages
from mlplatform_gateway.pages.overview import FrontPage
from mlplatform_gateway.people.s3_key import FileKey, PeopleKey
from mlplatform_gateway.people.secrets import Secrets
from mlplatform_gateway.people.sessions import Sessions
from mlplatform_gateway.people.store import People
from mlplatform_gateway.people.tokens import Tokens
from mlplatform_gateway.queue.api import Explanations
from mlplatform_gateway.queue.planner.queue import Rules
from mlplatform_gateway.ray.allowed import allowed_requests
from mlplatform_gateway.ray.head import RayHead
from mlplatform_gateway.ray.proxy import ReverseProxy
from mlplatform_gateway.ray.utilisation import UtilisationSource
from mlplatform_gateway.retention.loop import (
    FormerCheckpoints,
    Kind,
    OldCheckpoints,
    OldRuns,
    Retention,
    UnusedPackages,
)
from mlplatform_gateway.settings import GatewaySettings
from mlplatform_gateway.usage.budgets import Budgets
from mlplatform_gateway.usage.report import UsageReader


class Parts:
    """The parts.

    Raises:
        SettingsError: a secret's file cannot be read.
    """

    def __init__(self, config: GatewaySettings) -> None:
        token = _token(config.token_path)
        of_cluster = _token(config.cluster_token_path, "MLPLATFORM_CLUSTER_TOKEN_PATH")
        path = config.secrets_key_path
        key = _token(path, "MLPLATFORM_SECRETS_KEY_PATH").read() if path else None
        self.store = JobStore(config.database)
        engine = self.store.engine

        # What jobs run with.
        self.head = RayHead(config.head, config.head_agent, of_cluster.sign)
        self._proxy = ReverseProxy(config.head, of_cluster.read)
        self.to_head = allowed_requests(ResponseHeaders(self._proxy, policy=RAY_PAGES))
        self.logs = JobLogs(open_store(config.files, "MLPLATFORM_GATEWAY_STORE"), self.store.job_of)
        self.packages = Packages(config.files, config.package_bytes)
        uri, account = config.tracking_uri, config.tracking_account
        self.tracking = mlflow.mlflow_client(uri, account) if uri else None
        self._outages = Outages(config.servers())

        # Jobs, and who gets which resources.
        self.services = Services(
            *(self.store, self.head, self.logs, self.packages, self._outages, self.tracking, config.driver_labels)
        )
        self.utilisation = UtilisationSource(self.head)
        attempts = AttemptTokens(engine, config.gateway)
        rules = Rules(config.grace_seconds, config.overdue_seconds)
        limits = Limits(config.job_starts, config.job_start_seconds, rules)
        self.reconciler = Reconciler(self.services, self.utilisation, attempts, limits)
        self.disks = Disks(config.disk_folders(), int(config.disk_reserve_gb * 10**9))
        self.admission = Admission(self.services, self.disks)
        self._schedules = Schedules(self.services, self.admission, self.reconciler.wake)
        self.overview = JobOverview(engine)
        self.runs = JobRuns(engine)
        self.usage = UsageReader(engine)
        self.budgets = Budgets(engine)
        self.explanations = Explanations(lambda: self.reconciler.starter.view)

        # People, and programs with tokens.
        self.audit = AuditLog(engine)
        self.people = People(engine)
        self.tokens = Tokens(engine)
        self.sessions = Sessions(engine, token.read)
        self.programs = _programs(config)
        self.check = TokenCheck(token.read, self.audit, self.tokens, self.programs, attempts, of_cluster.read)
        self.visits = Visits()
        self.labs = Labs(self.head)
        self.secrets = Secrets(engine, key)
        self.accounts = MlflowAccounts(engine, uri, self.tracking if account else None, key)
        self.storage_key = _storage_key(config, self.store)
        self.sender = MessageSender(
            config.webhook_schemes.split(","), config.webhook_private_addresses == "true", _mail_server(config)
        )
        self._messenger = Messenger(engine, self.sender)

        # Data that stays, and what is seen of all of it.
        self.digests = ModelDigests(engine, mlflow.ModelFiles(self.tracking) if self.tracking else None)
        self.retention = Retention(_kinds(config, self.store, self.packages, self.tracking))
        self.grafana = Monitoring("Grafana", config.grafana)
        self.prometheus_password = password = _prometheus_password(config)
        self.prometheus = Monitoring("Prometheus", config.prometheus, password.read()) if password else None
        self.backups = partial(metrics.of_backups, config.backups, config.backup_hours)
        self.page = FrontPage(
            *(self.overview, self.services.cluster, self.head, self.utilisation),
            *(config.tools, self.disks, self.explanations),
        )

    def of_labs(self) -> dict[str, Any]:
        """Return what the pages of JupyterLab need."""
        owner = partial(owner_of, check=self.check, sessions=self.sessions)
        return {"labs": self.labs, "visits": self.visits, "jobs": self.store, "people": self.people, "owner": owner}

    def loops(self) -> Sequence[Coroutine[Any, Any, None]]:
        """Return the background work of all features; none of it returns."""
        of_jobs = (self.reconciler, self._schedules, self.logs, self._messenger)
        works = (*of_jobs, self.retention, self.accounts, self.digests)
        return [work.run() for work in (*works, *([self.storage_key] if self.storage_key else []))]

    async def close(self) -> None:
        """Close all connections."""
        for part in (self.labs, self.head, self._outages, self._proxy, self.page, self.grafana, self.sender):
            await part.close()
        if self.tracking is not None:
            await self.tracking.aclose()
        if self.prometheus is not None:
            await self.prometheus.close()


def _token(path: Path, variable: str = "RAY_AUTH_TOKEN_PATH") -> TokenFile:
    """Return a file with a token, which can be read."""
    token = TokenFile(path, variable)
    token.read()
    return token


def _programs(config: GatewaySettings) -> dict[str, Callable[[], str]]:
    """Return what reads the token of each program that has one; MLflow's is the password of our account there."""
    found: dict[str, Callable[[], str]] = {}
    if config.shipper_token_path is not None:
        found[LOG_SHIPPER] = _token(config.shipper_token_path, "MLPLATFORM_SHIPPER_TOKEN_PATH").read
    if config.tracking_account is not None:
        _, password = read_mlflow_account(config.tracking_account)
        found[MLFLOW] = lambda: password
    return found


def _prometheus_password(config: GatewaySettings) -> TokenFile | None:
    """Return the password of Prometheus, if the stack has one; it also sends it as a token for the metrics."""
    path = config.prometheus_password_path
    return None if path is None else _token(path, "MLPLATFORM_PROMETHEUS_PASSWORD_PATH")


def _kinds(
    config: GatewaySettings, store: JobStore, packages: Packages, tracking: AsyncMlflowRest | None
) -> list[Kind]:
    """Return the kinds of data that are removed: by default those that can be recreated, others if it is set."""
    kinds: list[Kind] = [UnusedPackages(store, packages)]
    files = open_store(job.settings().storage)
    if config.checkpoints_keep_days:
        kinds.append(OldCheckpoints(store, files, config.checkpoints_keep_days))
    if config.runs_keep_days and tracking is not None:
        kinds.append(OldRuns(tracking, config.runs_keep_days))
    if config.object_store:
        kinds.append(FormerCheckpoints(files))
    return kinds


def _storage_key(config: GatewaySettings, store: JobStore) -> FileKey | PeopleKey | None:
    """Return the S3 key of people, if there is an object store: at another server than ours, the one in the file."""
    if config.people_key is None or config.object_store is None:
        return None
    if config.s3_endpoint_url or config.s3_credentials is None:
        return FileKey(config.people_key)
    return PeopleKey(store.engine, config.object_store, read_s3_account(config.s3_credentials))


def _mail_server(config: GatewaySettings) -> MailServer | None:
    """Return the mail server for messages to people, if the stack has one."""
    if not config.mail_server or not config.mail_sender:
        return None
    return MailServer(
        config.mail_server,
        config.mail_sender,
        config.mail_user,
        config.mail_password_file,
        config.mail_tls == "required",
        frozenset(domain.strip().lower() for domain in config.mail_domains.split(",") if domain.strip()),
    )
