"""Requests that may reach the Ray head: what Ray's dashboard and command line read, and nothing that changes a cluster.

The list was made from the route tables in `ray/dashboard/` and the dashboard's bundle in Ray 2.60. It leaves out
profiling and stack traces of processes (`/worker/...`, `/task/...`, `/memory_profile`), deploying and deleting
applications of Ray Serve, the agents' and exporters' routes (`/report_events`, `/api/task_events`,
`/api/job_agent/...`), and the test route `/api/v0/delay/...`.
"""

from __future__ import annotations

import re

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from mlplatform_gateway.http.auth import principal_of

_READ = ("GET", "HEAD")
_PART = "[^/]+"

_Paths = tuple[tuple[tuple[str, ...], str], ...]
"""Methods and patterns of whole decoded paths."""

OF_PEOPLE: _Paths = (
    # The dashboard's page and its files. Its login dialog asks whether a token is needed; the log-in is the gateway's.
    (_READ, "/|/favicon.ico|/static/.+|/api/authentication_mode"),
    # Health checks by people, load balancers and KubeRay.
    (_READ, "/api/healthz|/api/gcs_healthz|/api/local_raylet_healthz|/-/healthz"),
    # The dashboard's settings: time zone of its times, redaction of variables, buttons that are shown.
    (_READ, "/timezone|/usage_stats_enabled|/cluster_id"),
    (_READ, "/api/profiling_enabled|/api/v0/runtime_env_redaction|/api/v0/cluster_metadata"),
    # Its frames of Grafana's panels, and versions for Ray's clients.
    (_READ, "/api/grafana_health|/api/prometheus_health|/api/version|/api/ray/version"),
    # Without the details of a node, which have the command lines of all jobs' processes.
    (_READ, "/nodes|/api/cluster_status|/api/v0/nodes"),
)
"""Requests of everybody: nothing in them is about a job. The gateway itself answers for people's jobs and logs."""

OF_ADMINISTRATORS: _Paths = (
    # The dashboard's pages Overview and Cluster, and our tests.
    (_READ, f"/nodes/{_PART}|/events|/api/v0/cluster_events|/api/v0/platform_events"),
    # Its pages of actors, of Ray Data, Ray Train and Ray Serve, which show and change nothing.
    (_READ, f"/logical/actors|/logical/actors/{_PART}"),
    (_READ, f"/api/data/datasets/{_PART}|/api/train/v2/runs|/api/train/v2/runs/v1|/api/serve/applications/"),
    # `ray list`, `ray get`, `ray summary`, `ray timeline`, and the dashboard's tables.
    (_READ, "/api/v0/(actors|jobs|placement_groups|workers|tasks|objects|runtime_envs)"),
    (_READ, "/api/v0/(actors|tasks|objects)/summarize|/api/v0/tasks/timeline"),
    # `ray logs` and the dashboard's pages of logs; the gateway answers for the logs of its own jobs.
    (_READ, "/api/v0/logs|/api/v0/logs/(file|stream)"),
    # Discovery of nodes by Prometheus.
    (_READ, "/api/prometheus/sd"),
    # Jobs that only Ray knows: submitted from within the cluster, or drivers that connected to it. Ids may contain
    # slashes; the head answers that such a job does not exist.
    (_READ, "/api/jobs/.+"),
    (("POST",), "/api/jobs/.+/stop"),
    (("DELETE",), "/api/jobs/.+"),
)
"""Requests of administrators and of the shared token, besides those of everybody."""


def allowed_requests(app: ASGIApp) -> ASGIApp:
    """Return an application that passes these requests on, and answers all others with 403.

    Paths below `/platform/` are the gateway's own: one that it does not have gets 404.
    """

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope.get("method", "WEBSOCKET"), scope["path"]
        principal, for_all = principal_of(scope), _has(OF_PEOPLE, method, path)
        for_some = for_all or _has(OF_ADMINISTRATORS, method, path)
        shown = f"{method} {path[:200]!r}"
        answer: ASGIApp
        if not principal.service and (for_all or (for_some and principal.administrator)):
            answer = app
        elif path.startswith("/platform/"):
            answer = PlainTextResponse(f"The gateway has no {shown}; see /platform/openapi.yaml.", 404)
        elif for_some:
            text = f"Only administrators may use {shown} of Ray; `mlplatform jobs` and the front page show your jobs."
            answer = PlainTextResponse(text, 403)
        else:
            text = f"The gateway does not pass {shown} on to Ray; use a job or the command line."
            answer = PlainTextResponse(text, 403)
        await answer(scope, receive, send)

    return serve


def _has(paths: _Paths, method: str, path: str) -> bool:
    return any(method in methods and re.fullmatch(pattern, path) for methods, pattern in paths)
