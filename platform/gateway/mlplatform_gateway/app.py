"""The gateway as an application: its routes, one line per feature, and its lifespan. `parts` makes what they use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.routing import Mount

from mlplatform.contract import GATEWAY_HEADER
from mlplatform.errors import PlatformError
from mlplatform_gateway.audit import api as audit
from mlplatform_gateway.dev import api as dev
from mlplatform_gateway.dev.pages import LabPages
from mlplatform_gateway.http.application import application
from mlplatform_gateway.http.auth import OPEN_PATHS, STATIC, TokenAuth
from mlplatform_gateway.http.clients import Forwarded
from mlplatform_gateway.http.errors import error_handler
from mlplatform_gateway.http.response_headers import ResponseHeaders
from mlplatform_gateway.jobs import api as jobs
from mlplatform_gateway.logs import api as logs
from mlplatform_gateway.mlflow import api as mlflow
from mlplatform_gateway.monitoring import metrics, ray_dashboard
from mlplatform_gateway.notify import api as notify
from mlplatform_gateway.packages import api as packages
from mlplatform_gateway.pages import api as pages
from mlplatform_gateway.parts import Parts
from mlplatform_gateway.people import api as people
from mlplatform_gateway.queue import api as queue
from mlplatform_gateway.retention import api as retention
from mlplatform_gateway.settings import GatewaySettings
from mlplatform_gateway.usage import api as usage


def create_app(config: GatewaySettings) -> FastAPI:
    """Return the gateway as an ASGI application.

    Raises:
        SettingsError: a secret's file cannot be read.
    """
    parts = Parts(config)
    its = parts.services
    routers = [
        jobs.routes(its, parts.reconciler, parts.admission, parts.to_head),
        jobs.end_routes(its, parts.reconciler, parts.to_head),
        jobs.state_routes(parts.store, parts.head),
        jobs.resume_routes(its, parts.reconciler, parts.admission),
        jobs.attempt_routes(parts.runs),
        dev.routes(parts.head, parts.audit, parts.people, parts.visits),
        logs.routes(parts.logs, parts.to_head),
        logs.driver_routes(parts.store, parts.logs, parts.to_head),
        logs.shipper_routes(parts.logs),
        packages.routes(parts.packages, audit=parts.audit, disks=parts.disks),
        retention.routes(parts.retention, parts.audit),
        audit.routes(parts.audit),
        queue.routes(parts.explanations, parts.overview.later),
        queue.capacity_routes(parts.admission, its.cluster, parts.head),
        usage.routes(parts.usage, parts.people, parts.budgets),
        usage.utilisation_routes(parts.overview, its.cluster, parts.utilisation),
        people.people_routes(parts.people, parts.storage_key, parts.accounts),
        people.team_routes(parts.people, parts.store.open_jobs, parts.budgets),
        people.token_routes(parts.tokens, parts.check, parts.accounts),
        people.session_routes(parts.check, parts.sessions),
        people.secret_routes(parts.secrets),
        people.s3_key_routes(parts.storage_key, config.s3_endpoint_url, config.s3_port),
        mlflow.routes(parts.audit, parts.digests),
        mlflow.result_routes(parts.runs, parts.tracking),
        notify.routes(parts.people, parts.sender),
        pages.routes(parts.check, parts.sessions),
        pages.overview_routes(parts.page),
        pages.wheel_routes(config.wheels),
        ray_dashboard.routes(parts.grafana, parts.prometheus),
    ]
    open_paths = OPEN_PATHS
    if parts.prometheus_password is not None:
        password = parts.prometheus_password.read
        routers.append(metrics.routes(parts.overview, parts.usage, parts.logs, parts.disks, parts.backups, password))
        open_paths |= {metrics.PATH}  # the route accepts Prometheus' password only
    always = {GATEWAY_HEADER: version("mlplatform"), logs.INSTANCE: parts.logs.instance}
    return application(
        [
            *(route for router in routers for route in router.routes),
            pages.static_files(),
            Mount("/", app=parts.to_head),
        ],
        jobs=parts.store,
        services=parts.programs,
        others=("", STATIC),
        middleware=[
            *([Middleware(Forwarded, proxy=config.proxy)] if config.proxy else []),
            Middleware(LabPages, **parts.of_labs()),
            Middleware(ResponseHeaders, always=always),
            Middleware(TokenAuth, check=parts.check, sessions=parts.sessions, open_paths=open_paths),
        ],
        exception_handlers={PlatformError: error_handler(partial(parts.disks.problem, full=True))},
        lifespan=lambda _: _at_work(parts),
    )


@asynccontextmanager
async def _at_work(parts: Parts) -> AsyncIterator[None]:
    """Run the features' loops; at the end, store what is left of the logs, and close all connections."""
    parts.packages.tidy()
    tasks = [asyncio.create_task(work) for work in parts.loops()]
    for task in tasks:
        task.add_done_callback(_exit_with)
    try:
        yield
    finally:
        await parts.logs.flush()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await parts.close()


def _exit_with(task: asyncio.Task[None]) -> None:
    """Exit if a background task failed: the gateway must not look healthy without it."""
    if not task.cancelled() and task.exception() is not None:
        raise SystemExit(1) from task.exception()
