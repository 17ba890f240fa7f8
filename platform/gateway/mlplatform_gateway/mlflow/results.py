"""Results of a job: its runs at MLflow with curves of their metrics and with models, and its checkpoints."""

from __future__ import annotations

import asyncio
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from mlplatform.api import results as api
from mlplatform.client.mlflow_rest import RejectedError
from mlplatform.errors import UnreachableError
from mlplatform.storage import addresses, objects
from mlplatform_gateway.mlflow.client import get_run
from mlplatform_gateway.mlflow.rest import AsyncMlflowRest

_RUNS, _METRICS, _POINTS, _CHECKPOINTS = 20, 24, 300, 100
"""Runs, metrics, points of a curve and checkpoints at most, for one page; MLflow answers one request per metric."""

_CHECKPOINT = re.compile(r"(?:.*/)?checkpoint_[^/]+(?=/)")


async def read_runs(client: AsyncMlflowRest, run_ids: Sequence[str]) -> list[api.Run]:
    """Return those of some runs that were not deleted, 20 at most.

    Raises:
        UnreachableError, AccessError: as `close_runs`.
    """
    try:
        return await _read(client, run_ids)
    except RejectedError as error:
        raise UnreachableError(f"{error}; see its log.") from error


async def _read(client: AsyncMlflowRest, run_ids: Sequence[str]) -> list[api.Run]:
    found = await asyncio.gather(*(get_run(client, run_id) for run_id in run_ids[:_RUNS]))
    runs = [run for run in found if run and run["info"]["lifecycle_stage"] == "active"]
    if not runs:
        return []
    ids = [run["info"]["run_id"] for run in runs]
    logged = {metric["key"] for run in runs for metric in run["data"].get("metrics", [])}
    own = [name for name in logged if not name.startswith("system/")]
    names = sorted(own, key=lambda name: ("loss" not in name, name))[:_METRICS]
    versions, *curves = await asyncio.gather(_versions(client, ids), *(_curves(client, ids, name) for name in names))
    by_name = dict(zip(names, curves, strict=True))
    return [_shown(run, by_name, versions) for run in runs]


async def _curves(client: AsyncMlflowRest, run_ids: list[str], name: str) -> dict[str, api.Curve]:
    """Return a metric's curve by run."""
    query = {"run_ids": run_ids, "metric_key": name, "max_results": _POINTS}
    found = await client.call("GET", "metrics/get-history-bulk-interval", query)
    curves: dict[str, api.Curve] = defaultdict(lambda: api.Curve(steps=[], values=[]))
    for point in found.get("metrics", []):
        curve, value = curves[point["run_id"]], float(point.get("value", 0))
        curve.steps.append(int(point.get("step", 0)))
        curve.values.append(value if math.isfinite(value) else None)
    return curves


async def _versions(client: AsyncMlflowRest, run_ids: list[str]) -> list[dict[str, Any]]:
    """Return the registered versions of models that some runs have logged, as MLflow describes them."""
    named = ", ".join(f"'{run_id}'" for run_id in run_ids)
    query = {"filter": f"run_id IN ({named})", "max_results": 100}
    return list((await client.call("GET", "model-versions/search", query)).get("model_versions", []))


def _shown(run: Mapping[str, Any], curves: Mapping[str, Mapping[str, api.Curve]], versions: list[Any]) -> api.Run:
    """Return a run with its curves, by metric and run, and with those of the registered versions that are its own."""
    info = run["info"]
    run_id, experiment = info["run_id"], f"#/experiments/{info['experiment_id']}"
    own = [one for one in versions if one.get("run_id") == run_id]
    models = [
        api.Model(name=name, version=number, page=f"#/models/{quote(name, safe='')}/versions/{number}")
        for name, number in ((one["name"], str(one["version"])) for one in own)
    ]
    logged = {output["model_id"] for output in run.get("outputs", {}).get("model_outputs", [])}
    for model_id in sorted(logged - {one.get("model_id") for one in own}):
        models.append(api.Model(name=model_id, version=None, page=f"{experiment}/models/{model_id}"))
    return api.Run(
        id=run_id,
        name=info.get("run_name", ""),
        status=info["status"],
        page=f"{experiment}/runs/{run_id}",
        metrics={name: by_run[run_id] for name, by_run in curves.items() if run_id in by_run},
        models=models,
    )


def checkpoints(job_id: str) -> tuple[str, list[str]]:
    """Return the folder of a job's checkpoints, and the last 100 names below it."""
    folder = addresses.checkpoint_uri(job_id=job_id)
    files = (file.removeprefix(f"{folder}/") for file in objects.list_files(folder))
    return folder, sorted({match[0] for file in files if (match := _CHECKPOINT.match(file))})[-_CHECKPOINTS:]
