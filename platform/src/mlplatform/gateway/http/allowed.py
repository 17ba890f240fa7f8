"""Requests that may reach the Ray head: what Ray's dashboard and command line read, and nothing that changes a cluster.

The list was made from the route tables in `ray/dashboard/` and the dashboard's bundle in Ray 2.60. It leaves out
profiling and stack traces of processes (`/worker/...`, `/task/...`, `/memory_profile`), deploying and deleting
applications of Ray Serve, the agents' and exporters' routes (`/report_events`, `/api/task_events`,
`/api/job_agent/...`), and the test route `/api/v0/delay/...`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from mlplatform.gateway.http.auth import principal_of

_READ = ("GET", "HEAD")

_PART = "[^/]+"

ALLOWED: tuple[tuple[tuple[str, ...], str], ...] = (
    # The dashboard's page and its files.
    (_READ, "/"),
    (_READ, "/favicon.ico"),
    (_READ, "/static/.+"),
    # Its login dialog asks whether a token is needed; the log-in itself is the gateway's.
    (_READ, "/api/authentication_mode"),
    # Health checks by people, load balancers and KubeRay.
    (_READ, "/api/healthz|/api/gcs_healthz|/api/local_raylet_healthz|/-/healthz"),
    # The dashboard's settings: time zone of its times, redaction of variables, buttons that are shown.
    (_READ, "/timezone|/usage_stats_enabled|/cluster_id"),
    (_READ, "/api/profiling_enabled|/api/v0/runtime_env_redaction|/api/v0/cluster_metadata"),
    # Its pages Overview and Cluster, and our tests.
    (_READ, f"/nodes|/nodes/{_PART}|/api/cluster_status|/events|/api/v0/cluster_events|/api/v0/platform_events"),
    # Its pages of actors, of Ray Data, Ray Train and Ray Serve, which show and change nothing.
    (_READ, f"/logical/actors|/logical/actors/{_PART}"),
    (_READ, f"/api/data/datasets/{_PART}|/api/train/v2/runs|/api/train/v2/runs/v1|/api/serve/applications/"),
    # Its frames of Grafana's panels.
    (_READ, "/api/grafana_health|/api/prometheus_health"),
    # `ray list`, `ray get`, `ray summary`, `ray timeline`, and the dashboard's tables.
    (_READ, "/api/v0/(actors|jobs|nodes|placement_groups|workers|tasks|objects|runtime_envs)"),
    (_READ, "/api/v0/(actors|tasks|objects)/summarize|/api/v0/tasks/timeline"),
    # `ray logs` and the dashboard's pages of logs; the gateway answers for the logs of its own jobs.
    (_READ, "/api/v0/logs|/api/v0/logs/(file|stream)"),
    # Versions for Ray's clients.
    (_READ, "/api/version|/api/ray/version"),
    # Discovery of nodes by Prometheus.
    (_READ, "/api/prometheus/sd"),
    # Jobs that only Ray knows: submitted from within the cluster, or drivers that connected to it. Ids may contain
    # slashes; the head answers that such a job does not exist.
    (_READ, "/api/jobs/.+"),
    (("POST",), "/api/jobs/.+/stop"),
    (("DELETE",), "/api/jobs/.+"),
)
"""Methods and patterns of whole decoded paths."""

OF_PEOPLE: tuple[tuple[tuple[str, ...], str], ...] = (
    (_READ, "/|/favicon.ico|/static/.+|/api/authentication_mode"),
    (_READ, "/api/healthz|/api/gcs_healthz|/api/local_raylet_healthz|/-/healthz"),
    (_READ, "/timezone|/usage_stats_enabled|/cluster_id"),
    (_READ, "/api/profiling_enabled|/api/v0/runtime_env_redaction|/api/v0/cluster_metadata"),
    (_READ, "/api/grafana_health|/api/prometheus_health|/api/version|/api/ray/version"),
    # Without the details of a node, which have the command lines of all jobs' processes.
    (_READ, "/nodes|/api/cluster_status|/api/v0/nodes"),
)
"""The part of `ALLOWED` for people who are not administrators: nothing in it is about a job. The gateway itself answers
for their jobs, and for the logs of these."""


class AllowedRequests:
    """ASGI application that passes the requests of a list on, and answers all others with 403.

    Paths below `/platform/` are the gateway's own: one that it does not have gets 404.

    Args:
        app: the reverse proxy.
        allowed: methods and patterns of whole decoded paths.
        of_people: those for everybody; `allowed` is for administrators and the shared token.
    """

    def __init__(
        self,
        app: ASGIApp,
        allowed: Iterable[tuple[tuple[str, ...], str]] = ALLOWED,
        of_people: Iterable[tuple[tuple[str, ...], str]] = OF_PEOPLE,
    ) -> None:
        self._app = app
        self._allowed = [(methods, re.compile(path)) for methods, path in allowed]
        self._of_people = [(methods, re.compile(path)) for methods, path in of_people]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = "WEBSOCKET" if scope["type"] == "websocket" else scope["method"]
        principal = principal_of(scope)
        lists = [self._allowed] if principal.administrator else [self._of_people, self._allowed]
        for_all, *for_administrators = (
            any(method in methods and path.fullmatch(scope["path"]) for methods, path in allowed) for allowed in lists
        )
        if for_all and not principal.service:
            return await self._app(scope, receive, send)
        shown = f"{method} {scope['path'][:200]!r}"
        if scope["path"].startswith("/platform/"):
            unknown = PlainTextResponse(f"The gateway has no {shown}; see /platform/openapi.yaml.", 404)
            return await unknown(scope, receive, send)
        if for_all or any(for_administrators):
            text = f"Only administrators may use {shown} of Ray; `mlplatform jobs` and the front page show your jobs."
            return await PlainTextResponse(text, 403)(scope, receive, send)
        text = f"The gateway does not pass {shown} on to Ray; use a job or the command line."
        await PlainTextResponse(text, 403)(scope, receive, send)
