"""Composition of the gateway: its parts, its routes and its lifespan."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.routing import Mount

from mlplatform.client.mlflow_rest import AsyncMlflowRest
from mlplatform.contract import GATEWAY_HEADER
from mlplatform.errors import PlatformError
from mlplatform.secrets.credentials import TokenFile, read_mlflow_account, read_s3_account
from mlplatform.settings import job
from mlplatform.storage.objects import open_store
from mlplatform_gateway.audit import api as http_audit
from mlplatform_gateway.audit.store import AuditLog
from mlplatform_gateway.http.access import LOG_SHIPPER, MLFLOW
from mlplatform_gateway.http.application import application
from mlplatform_gateway.http.auth import OPEN_PATHS, STATIC, TokenAuth, TokenCheck
from mlplatform_gateway.http.errors import error_handler
from mlplatform_gateway.http.forwarded import Forwarded
from mlplatform_gateway.http.headers import RAY_PAGES, ResponseHeaders
from mlplatform_gateway.jobs import api as http_jobs
from mlplatform_gateway.jobs import attempts_api as http_attempts
from mlplatform_gateway.jobs import resuming_api as http_resuming
from mlplatform_gateway.jobs.admission import Admission
from mlplatform_gateway.jobs.attempt_tokens import AttemptTokens
from mlplatform_gateway.jobs.loop import Reconciler
from mlplatform_gateway.jobs.overview import JobOverview
from mlplatform_gateway.jobs.runs import JobRuns
from mlplatform_gateway.jobs.store import JobStore
from mlplatform_gateway.jobs.totals import TotalsReader
from mlplatform_gateway.logs import api as http_logs
from mlplatform_gateway.logs import job_api as job_logs
from mlplatform_gateway.logs.store import JobLogs
from mlplatform_gateway.mlflow import api as http_mlflow
from mlplatform_gateway.mlflow import client as mlflow
from mlplatform_gateway.mlflow.accounts import MlflowAccounts
from mlplatform_gateway.mlflow.digests import ModelDigests
from mlplatform_gateway.monitoring import metrics as http_metrics
from mlplatform_gateway.monitoring import ray_dashboard as monitoring
from mlplatform_gateway.monitoring.disks import Disks
from mlplatform_gateway.monitoring.outages import Outages
from mlplatform_gateway.notify import api as http_webhooks
from mlplatform_gateway.notify.loop import Messenger
from mlplatform_gateway.notify.mail import MailServer
from mlplatform_gateway.notify.sender import MessageSender
from mlplatform_gateway.packages import api as http_packages
from mlplatform_gateway.packages.store import Packages
from mlplatform_gateway.pages import wheel as http_wheel
from mlplatform_gateway.pages.api import FrontPageRoutes
from mlplatform_gateway.pages.view import FrontPage
from mlplatform_gateway.people import api as http_people
from mlplatform_gateway.people import s3_key_api as http_storage
from mlplatform_gateway.people import secrets_api as http_secrets
from mlplatform_gateway.people import sessions_api as http_sessions
from mlplatform_gateway.people.s3_key import FileKey, PeopleKey
from mlplatform_gateway.people.secrets import Secrets
from mlplatform_gateway.people.sessions import Sessions
from mlplatform_gateway.people.store import People
from mlplatform_gateway.people.tokens import Tokens
from mlplatform_gateway.queue import api as http_queue
from mlplatform_gateway.queue import capacity_api as capacity
from mlplatform_gateway.queue.planner.queue import Rules
from mlplatform_gateway.ray.allowed import allowed_requests
from mlplatform_gateway.ray.head import RayHead
from mlplatform_gateway.ray.proxy import ReverseProxy
from mlplatform_gateway.ray.utilisation import UtilisationSource
from mlplatform_gateway.retention import api as http_retention
from mlplatform_gateway.retention.loop import (
    FormerCheckpoints,
    Kind,
    OldCheckpoints,
    OldRuns,
    Retention,
    UnusedPackages,
)
from mlplatform_gateway.settings import GatewaySettings
from mlplatform_gateway.usage import api as http_usage
from mlplatform_gateway.usage import utilisation_api as http_utilisation
from mlplatform_gateway.usage.report import UsageReader

_VERSION = version("mlplatform")


def create_app(config: GatewaySettings) -> FastAPI:
    """Return the gateway as an ASGI application.

    Raises:
        SettingsError: a secret's file cannot be read.
    """
    token, cluster = TokenFile(config.token_path), TokenFile(config.cluster_token_path, "MLPLATFORM_CLUSTER_TOKEN_PATH")
    token.read()
    cluster.read()
    store = JobStore(config.database)
    head = RayHead(config.head, config.head_agent, cluster.sign)
    logs = JobLogs(open_store(config.files, "MLPLATFORM_GATEWAY_STORE"), store.job_of)
    packages = Packages(config.files, config.package_bytes)
    outages = Outages(config.servers())
    tracking = mlflow.mlflow_client(config.tracking_uri, config.tracking_account) if config.tracking_uri else None
    utilisation = UtilisationSource(head)
    attempts = AttemptTokens(store.engine, config.gateway)
    reconciler = Reconciler(
        *(config.job_starts, config.driver_labels, store, head, logs, packages, outages, tracking),
        *(utilisation, attempts),
        start_seconds=config.job_start_seconds,
        rules=Rules(config.grace_seconds, config.overdue_seconds),
    )
    proxy = ReverseProxy(config.head, cluster.read)
    to_head = allowed_requests(ResponseHeaders(proxy, policy=RAY_PAGES))
    private = config.webhook_private_addresses == "true"
    sender = MessageSender(config.webhook_schemes.split(","), private, _mail_server(config))
    disks = Disks(config.disk_folders(), int(config.disk_reserve_gb * 10**9))
    admission = Admission(store.engine, reconciler, disks)
    messenger = Messenger(store.engine, sender)
    retention = Retention(_kinds(config, store, packages, tracking))
    usage = UsageReader(store.engine)
    backups = partial(http_metrics.of_backups, config.backups, config.backup_hours)
    published = []
    prometheus = None
    if password := _prometheus_password(config):
        published = [http_metrics.routes(TotalsReader(store.engine), usage, logs, disks, backups, password.read)]
        prometheus = monitoring.Monitoring("Prometheus", config.prometheus, password.read())
    audit = AuditLog(store.engine)
    tokens = Tokens(store.engine)
    people = People(store.engine)
    storage_key = _storage_key(config, store)
    services, key = _services(config), _key(config.secrets_key_path)
    accounts = MlflowAccounts(store.engine, config.tracking_uri, tracking if config.tracking_account else None, key)
    digests = ModelDigests(store.engine, mlflow.ModelFiles(tracking) if tracking else None)
    secrets = Secrets(store.engine, key)
    check = TokenCheck(token.read, audit, tokens, services, attempts, cluster.read)
    sessions = Sessions(store.engine, token.read)
    overview = JobOverview(store.engine)
    explanations = http_queue.Explanations(lambda: reconciler.starter.view)
    page = FrontPage(overview, reconciler, head, utilisation, config.tools, disks, explanations)
    runs = JobRuns(store.engine)
    pages = mlflow.JobPages(tracking) if tracking else None
    grafana = monitoring.Monitoring("Grafana", config.grafana)
    front_page = FrontPageRoutes(page, check, sessions, runs, pages, config.tool("MLflow"))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        packages.tidy()
        works = [reconciler.run(), logs.run(), retention.run(), messenger.run(), accounts.run(), digests.run()]
        works += [storage_key.run()] if storage_key else []
        tasks = [asyncio.create_task(work) for work in works]
        for task in tasks:
            task.add_done_callback(_exit_with)
        try:
            yield
        finally:
            await logs.flush()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for close in (head.close, outages.close, proxy.close, page.close, grafana.close, sender.close):
                await close()
            if tracking is not None:
                await tracking.aclose()
            if prometheus is not None:
                await prometheus.close()

    routers = [
        http_jobs.routes(store, reconciler, admission, to_head),
        http_jobs.end_routes(store, reconciler, logs, head, to_head),
        http_jobs.state_routes(store, head),
        job_logs.routes(logs, to_head),
        job_logs.driver_routes(store, logs, to_head),
        http_resuming.routes(store, reconciler, logs, packages, admission),
        http_packages.routes(packages, audit=audit, disks=disks),
        http_retention.routes(retention, audit),
        http_audit.routes(audit),
        http_queue.routes(explanations),
        http_usage.routes(usage),
        capacity.routes(admission, reconciler, head),
        http_logs.routes(logs),
        http_sessions.routes(check, sessions),
        http_people.people_routes(people, storage_key, accounts),
        http_people.team_routes(people, store.open_jobs),
        http_people.token_routes(tokens, check, accounts),
        http_storage.routes(storage_key, config.s3_endpoint_url, config.s3_port),
        http_mlflow.routes(audit, digests),
        http_webhooks.routes(people, sender),
        http_attempts.routes(secrets, runs),
        http_secrets.routes(secrets),
        http_utilisation.routes(overview, reconciler, utilisation),
        http_wheel.routes(config.wheels),
        *published,
        monitoring.routes(grafana, prometheus),
    ]
    # The route of the metrics accepts Prometheus' password only.
    open_paths = OPEN_PATHS | {http_metrics.PATH} if published else OPEN_PATHS
    return application(
        [*(route for router in routers for route in router.routes), *front_page.routes(), Mount("/", app=to_head)],
        jobs=store,
        services=services,
        others=("", STATIC),
        middleware=[
            *([Middleware(Forwarded, proxy=config.proxy)] if config.proxy else []),
            Middleware(ResponseHeaders, always={GATEWAY_HEADER: _VERSION, http_logs.INSTANCE: logs.instance}),
            Middleware(TokenAuth, check=check, sessions=sessions, open_paths=open_paths),
        ],
        exception_handlers={PlatformError: error_handler(partial(disks.problem, full=True))},
        lifespan=lifespan,
    )


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


def _prometheus_password(config: GatewaySettings) -> TokenFile | None:
    """Return the password of Prometheus, if the stack has one; it also sends it as a token for the metrics."""
    if config.prometheus_password_path is None:
        return None
    password = TokenFile(config.prometheus_password_path, "MLPLATFORM_PROMETHEUS_PASSWORD_PATH")
    password.read()
    return password


def _key(path: Path | None) -> str | None:
    """Return the key that encrypts people's secrets, if the gateway has one."""
    return None if path is None else TokenFile(path, "MLPLATFORM_SECRETS_KEY_PATH").read()


def _services(config: GatewaySettings) -> dict[str, Callable[[], str]]:
    """Return what reads the token of each service that has one; MLflow's is the password of our account there."""
    found: dict[str, Callable[[], str]] = {}
    if config.shipper_token_path is not None:
        token = TokenFile(config.shipper_token_path, "MLPLATFORM_SHIPPER_TOKEN_PATH")
        token.read()
        found[LOG_SHIPPER] = token.read
    if config.tracking_account is not None:
        _, password = read_mlflow_account(config.tracking_account)
        found[MLFLOW] = lambda: password
    return found


def _exit_with(task: asyncio.Task[None]) -> None:
    """Exit if a background task failed: the gateway must not look healthy without it."""
    if not task.cancelled() and task.exception() is not None:
        raise SystemExit(1) from task.exception()
