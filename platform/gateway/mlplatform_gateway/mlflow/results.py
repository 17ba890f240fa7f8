"""Results of a job: its runs at MLflow with curves of their metrics and with models, and its checkpoints."""

from __future__ import annotations

import asyncio
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from urllib.parse import quote

from mlplatform.api import results as api
from mlplatform.storage import addresses, objects
from mlplatform_gateway.mlflow.client import get_run
from mlplatform_gateway.mlflow.rest import AsyncMlflowRest

_RUNS, _METRICS, _POINTS = 20, 24, 300
"""Runs, metrics and points of a curve at most, for one page; MLflow answers one request per metric."""

_CHECKPOINT = re.compile(r"(?:.*/)?checkpoint_[^/]+(?=/)")


class JobResults:
    """Reader of the runs; raises UnreachableError or AccessError, as `close_runs` does."""

    def __init__(self, client: AsyncMlflowRest) -> None:
        self._client = client

    async def runs(self, run_ids: Sequence[str]) -> list[api.Run]:
        """Return those of the runs that were not deleted, 20 at most."""
        found = await asyncio.gather(*(get_run(self._client, run_id) for run_id in run_ids[:_RUNS]))
        runs = [run for run in found if run and run["info"]["lifecycle_stage"] == "active"]
        if not runs:
            return []
        ids = [run["info"]["run_id"] for run in runs]
        logged = {metric["key"] for run in runs for metric in run["data"].get("metrics", [])}
        names = sorted(
            (name for name in logged if not name.startswith("system/")), key=lambda name: ("loss" not in name, name)
        )[:_METRICS]
        models, *curves = await asyncio.gather(self._models(ids), *(self._curves(ids, name) for name in names))
        by_name = dict(zip(names, curves, strict=True))
        return [
            api.Run(
                id=info["run_id"],
                name=info.get("run_name", ""),
                status=info["status"],
                page=f"#/experiments/{info['experiment_id']}/runs/{info['run_id']}",
                metrics={name: of[info["run_id"]] for name, of in by_name.items() if info["run_id"] in of},
                models=models.get(info["run_id"], []),
            )
            for info in (run["info"] for run in runs)
        ]

    async def _curves(self, run_ids: list[str], name: str) -> dict[str, api.Curve]:
        """Return a metric's curve by run."""
        query = {"run_ids": run_ids, "metric_key": name, "max_results": _POINTS}
        found = await self._client.call("GET", "metrics/get-history-bulk-interval", query)
        curves: dict[str, api.Curve] = defaultdict(lambda: api.Curve(steps=[], values=[]))
        for point in found.get("metrics", []):
            curve, value = curves[point["run_id"]], float(point.get("value", 0))
            curve.steps.append(int(point.get("step", 0)))
            curve.values.append(value if math.isfinite(value) else None)
        return curves

    async def _models(self, run_ids: list[str]) -> dict[str, list[api.ModelVersion]]:
        """Return the registered versions of models by run."""
        named = ", ".join(f"'{run_id}'" for run_id in run_ids)
        query = {"filter": f"run_id IN ({named})", "max_results": 100}
        found = await self._client.call("GET", "model-versions/search", query)
        models: dict[str, list[api.ModelVersion]] = defaultdict(list)
        for version in found.get("model_versions", []):
            name, number = version["name"], str(version["version"])
            page = f"#/models/{quote(name, safe='')}/versions/{number}"
            models[version.get("run_id", "")].append(api.ModelVersion(name=name, version=number, page=page))
        return models


def checkpoints(job_id: str) -> tuple[str, list[str]]:
    """Return the folder of a job's checkpoints, and their names below it."""
    folder = addresses.checkpoint_uri(job_id=job_id)
    files = (file.removeprefix(f"{folder}/") for file in objects.list_files(folder))
    return folder, sorted({match[0] for file in files if (match := _CHECKPOINT.match(file))})
