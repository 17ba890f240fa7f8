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

from mlplatform.contract import GATEWAY_HEADER
from mlplatform.credentials import TokenFile, read_mlflow_account, read_s3_account
from mlplatform.errors import PlatformError
from mlplatform.gateway.audit.log import AuditLog
from mlplatform.gateway.control.admission import Admission
from mlplatform.gateway.control.attempt_tokens import AttemptTokens
from mlplatform.gateway.control.digests import ModelDigests
from mlplatform.gateway.control.disks import Disks
from mlplatform.gateway.control.messages import Messenger
from mlplatform.gateway.control.mlflow_accounts import MlflowAccounts
from mlplatform.gateway.control.outages import Outages
from mlplatform.gateway.control.people_key import FileKey, PeopleKey
from mlplatform.gateway.control.reconciler import Reconciler
from mlplatform.gateway.control.retention import (
    FormerCheckpoints,
    Kind,
    OldCheckpoints,
    OldRuns,
    Retention,
    UnusedPackages,
)
from mlplatform.gateway.http import attempts as http_attempts
from mlplatform.gateway.http import audit as http_audit
from mlplatform.gateway.http import capacity, job_logs, monitoring
from mlplatform.gateway.http import jobs as http_jobs
from mlplatform.gateway.http import logs as http_logs
from mlplatform.gateway.http import metrics as http_metrics
from mlplatform.gateway.http import mlflow as http_mlflow
from mlplatform.gateway.http import packages as http_packages
from mlplatform.gateway.http import people as http_people
from mlplatform.gateway.http import queue as http_queue
from mlplatform.gateway.http import resuming as http_resuming
from mlplatform.gateway.http import retention as http_retention
from mlplatform.gateway.http import secrets as http_secrets
from mlplatform.gateway.http import sessions as http_sessions
from mlplatform.gateway.http import storage as http_storage
from mlplatform.gateway.http import usage as http_usage
from mlplatform.gateway.http import utilisation as http_utilisation
from mlplatform.gateway.http import webhooks as http_webhooks
from mlplatform.gateway.http import wheel as http_wheel
from mlplatform.gateway.http.access import LOG_SHIPPER, MLFLOW
from mlplatform.gateway.http.allowed import allowed_requests
from mlplatform.gateway.http.application import application
from mlplatform.gateway.http.auth import OPEN_PATHS, STATIC, TokenAuth, TokenCheck
from mlplatform.gateway.http.errors import error_handler
from mlplatform.gateway.http.forwarded import Forwarded
from mlplatform.gateway.http.front_page.routes import FrontPageRoutes
from mlplatform.gateway.http.front_page.view import FrontPage
from mlplatform.gateway.http.headers import RAY_PAGES, ResponseHeaders
from mlplatform.gateway.http.proxy import ReverseProxy
from mlplatform.gateway.jobs.overview import JobOverview
from mlplatform.gateway.jobs.packages import Packages
from mlplatform.gateway.jobs.runs import JobRuns
from mlplatform.gateway.jobs.store import JobStore
from mlplatform.gateway.jobs.totals import TotalsReader
from mlplatform.gateway.logs.store import JobLogs
from mlplatform.gateway.people.secrets import Secrets
from mlplatform.gateway.people.sessions import Sessions
from mlplatform.gateway.people.store import People
from mlplatform.gateway.people.tokens import Tokens
from mlplatform.gateway.upstream import mlflow
from mlplatform.gateway.upstream.mail import MailServer
from mlplatform.gateway.upstream.messages import MessageSender
from mlplatform.gateway.upstream.ray import RayHead
from mlplatform.gateway.upstream.utilisation import UtilisationSource
from mlplatform.gateway.usage.report import UsageReader
from mlplatform.mlflow_rest import AsyncMlflowRest
from mlplatform.scheduling.queue import Rules
from mlplatform.settings import job
from mlplatform.settings.gateway import GatewaySettings
from mlplatform.storage.objects import open_store

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
