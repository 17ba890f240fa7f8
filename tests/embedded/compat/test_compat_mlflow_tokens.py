"""Routes of MLflow 3.17.2 by which something is written, and which of them a job may use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from mlplatform.compat.mlflow_tokens import may_job

FOR_JOBS = """
PUT /api/2.0/mlflow-artifacts/artifacts/x
POST /api/2.0/mlflow-artifacts/mpu/abort/x
POST /api/2.0/mlflow-artifacts/mpu/complete/x
POST /api/2.0/mlflow-artifacts/mpu/create/x
POST /api/2.0/mlflow/artifacts/presigned-download-url
POST /api/2.0/mlflow/artifacts/presigned-upload-url
POST /api/2.0/mlflow/experiments/create
POST /api/2.0/mlflow/experiments/search
POST /api/2.0/mlflow/experiments/search-datasets
POST /api/2.0/mlflow/experiments/set-experiment-tag
POST /api/2.0/mlflow/logged-models
POST /api/2.0/mlflow/logged-models/search
PATCH /api/2.0/mlflow/logged-models/x
POST /api/2.0/mlflow/logged-models/x/params
PATCH /api/2.0/mlflow/logged-models/x/tags
POST /api/2.0/mlflow/model-versions/create
POST /api/2.0/mlflow/model-versions/set-tag
POST /api/2.0/mlflow/model-versions/transition-stage
PATCH /api/2.0/mlflow/model-versions/update
POST /api/2.0/mlflow/registered-models/alias
POST /api/2.0/mlflow/registered-models/create
POST /api/2.0/mlflow/registered-models/get-latest-versions
POST /api/2.0/mlflow/registered-models/set-tag
PATCH /api/2.0/mlflow/registered-models/update
POST /api/2.0/mlflow/runs/create
POST /api/2.0/mlflow/runs/create-promptlab-run
POST /api/2.0/mlflow/runs/delete-tag
POST /api/2.0/mlflow/runs/log-batch
POST /api/2.0/mlflow/runs/log-inputs
POST /api/2.0/mlflow/runs/log-metric
POST /api/2.0/mlflow/runs/log-model
POST /api/2.0/mlflow/runs/log-parameter
POST /api/2.0/mlflow/runs/outputs
POST /api/2.0/mlflow/runs/search
POST /api/2.0/mlflow/runs/set-tag
POST /api/2.0/mlflow/runs/update
POST /api/2.0/mlflow/traces
POST /api/2.0/mlflow/traces/link-prompts
POST /api/2.0/mlflow/traces/link-to-run
PATCH /api/2.0/mlflow/traces/x
PATCH /api/2.0/mlflow/traces/x/tags
POST /api/2.0/mlflow/upload-artifact
POST /api/2.0mlflow/experiments/search-datasets
POST /api/3.0/mlflow/datasets/create
POST /api/3.0/mlflow/datasets/search
POST /api/3.0/mlflow/datasets/x/add-experiments
POST /api/3.0/mlflow/datasets/x/records
POST /api/3.0/mlflow/datasets/x/remove-experiments
PATCH /api/3.0/mlflow/datasets/x/tags
POST /api/3.0/mlflow/genai/evaluate/invoke
POST /api/3.0/mlflow/issues
POST /api/3.0/mlflow/issues/invoke
POST /api/3.0/mlflow/issues/search
PATCH /api/3.0/mlflow/issues/x
POST /api/3.0/mlflow/label-schemas/create
PATCH /api/3.0/mlflow/label-schemas/update
POST /api/3.0/mlflow/review-queues/create
POST /api/3.0/mlflow/review-queues/get-or-create-user
POST /api/3.0/mlflow/review-queues/items/add
POST /api/3.0/mlflow/review-queues/items/remove
POST /api/3.0/mlflow/review-queues/items/set-status
POST /api/3.0/mlflow/review-queues/update
POST /api/3.0/mlflow/traces
POST /api/3.0/mlflow/traces/batchGetInfos
POST /api/3.0/mlflow/traces/calculate-filter-correlation
POST /api/3.0/mlflow/traces/metrics
POST /api/3.0/mlflow/traces/search
POST /api/3.0/mlflow/traces/x/assessments
PATCH /api/3.0/mlflow/traces/x/assessments/x
PATCH /api/3.0/mlflow/traces/x/tags
POST /api/3.0/mlflow/ui-telemetry
POST /graphql
POST /v1/traces
"""
"""Allowed ones, `/ajax-api/` as `/api/`. For each that a new MLflow adds, decide: list it here, or refuse it in
`mlflow_tokens`."""


def writing_routes() -> set[tuple[str, str]]:
    """Methods and paths, with `x` for each variable, that MLflow's code registers beside those that only read."""
    from mlflow.server import app
    from mlflow.server.auth import routes
    from mlflow.server.fastapi_app import create_fastapi_app

    of_flask = {(method, rule.rule) for rule in app.url_map.iter_rules() for method in rule.methods or ()}
    of_fastapi = set(routes_of_fastapi(create_fastapi_app(app)))
    # Those of accounts are registered with the accounts' database only, so their methods are not known here.
    known = {path for _, path in of_flask | of_fastapi}
    paths = [path for name, path in vars(routes).items() if name.isupper() and isinstance(path, str)]
    of_accounts = {(method, path) for path in paths if path not in known for method in ("POST", "PATCH", "DELETE")}
    return {
        (method, re.sub(r"<[^>]+>|{[^}]+}", "x", path).replace("/ajax-api/", "/api/"))
        for method, path in of_flask | of_fastapi | of_accounts
        if method not in ("GET", "HEAD", "OPTIONS") and path.startswith("/")
    }


def routes_of_fastapi(router: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Methods and paths of a router and of those that it includes, which FastAPI 0.165 no longer copies into it."""
    for route in router.routes:
        for method in getattr(route, "methods", None) or ():
            yield method, prefix + route.path
        if included := getattr(route, "original_router", None):
            yield from routes_of_fastapi(included, prefix + route.include_context.prefix)


def test_job_writes_by_routes_that_are_listed_only() -> None:
    found = writing_routes()
    assert len(found) > 150
    assert {f"{method} {path}" for method, path in found if may_job(method, path)} == set(FOR_JOBS.split("\n")) - {""}


def test_spelling_of_the_api_decides_nothing() -> None:
    for method, path in writing_routes():
        other = path.replace("/api/", "/ajax-api/")
        assert may_job(method, path) == may_job(method, other), (method, path)
