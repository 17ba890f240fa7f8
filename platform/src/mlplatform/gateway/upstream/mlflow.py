"""A job's runs at MLflow: their pages, and their end when the process is gone, as MLflow has no heartbeat."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from mlplatform.contract import TAG_ATTEMPT, TAG_END_REASON
from mlplatform.errors import StorageError, UnreachableError
from mlplatform.mlflow_rest import AsyncMlflowRest, RejectedError, account_in

_OPEN = ("RUNNING", "SCHEDULED")

_REASON_CHARACTERS = 5000
"""MLflow 3.17 accepts 8000 in a tag, older versions 5000."""

_PAGE = 1000

_EXPIRED = "mlplatform/expired"
"""Route of our own in the stack's MLflow (`compat.mlflow_retention`)."""

_EXPERIMENTS = 500
"""Experiments per search of runs."""


def mlflow_client(address: str, account_file: Path | None = None) -> AsyncMlflowRest:
    """Return a client for `close_runs`.

    Args:
        address: of the server.
        account_file: one that `credentials.mlflow_account` has written; None for the account of this process, as on the
            embedded platform.

    Raises:
        SettingsError: there is no such file.
    """
    return AsyncMlflowRest(address, account_in(account_file) if account_file else None)


async def close_runs(
    client: AsyncMlflowRest,
    run_ids: Iterable[str],
    status: Literal["FINISHED", "FAILED", "KILLED"],
    reason: str,
    attempt: int | None = None,
) -> int:
    """End runs that are open.

    Each first gets the reason as a tag and is then ended. A run that has ended by itself is left as it is; a call that
    a crash interrupts is completed by the next one.

    Args:
        client: of `mlflow_client`.
        run_ids: their ids.
        status: the runs' status from now on.
        reason: kept as a tag of each run, cut to 5000 characters.
        attempt: leave runs that a later attempt than this one has continued, whose report may not have arrived yet.

    Returns:
        Number of runs that were ended.

    Raises:
        UnreachableError: MLflow is unavailable or fails, or the server is not MLflow; call again later.
        AccessError: MLflow rejected the account.
    """
    try:
        return sum([await _close(client, run_id, status, reason, attempt) for run_id in run_ids])
    except RejectedError as error:
        raise UnreachableError(f"{error}; see its log.") from error


async def open_runs(client: AsyncMlflowRest) -> set[str]:
    """Return the ids of all open runs of the server.

    Raises:
        UnreachableError, AccessError: as `close_runs`.
    """
    try:
        found = await client.all("POST", "experiments/search", "experiments", {"max_results": _PAGE})
        experiments = [experiment["experiment_id"] for experiment in found]
        runs: set[str] = set()
        for start in range(0, len(experiments), _EXPERIMENTS):
            for status in _OPEN:
                some = experiments[start : start + _EXPERIMENTS]
                wanted = f"attributes.status = '{status}'"
                query = {"max_results": _PAGE, "experiment_ids": some, "filter": wanted}
                runs |= {run["info"]["run_id"] for run in await client.all("POST", "runs/search", "runs", query)}
    except RejectedError as error:
        raise UnreachableError(f"{error}; see its log.") from error
    return runs


class DeletedRuns:
    """Deleted runs and logged models that the stack's MLflow removes for good.

    Every method raises UnreachableError or AccessError, as `close_runs` does, and StorageError if the server is another
    one, which has no such route.
    """

    def __init__(self, client: AsyncMlflowRest) -> None:
        self._client = client

    async def find(self, days: float) -> list[dict[str, Any]]:
        """Return id, number of files and bytes of each that was deleted some days ago and can be removed."""
        found: list[dict[str, Any]] = []
        after = ""
        while page := (await self._call("GET", {"days": days, "after": after}))["expired"]:
            found += [one for one in page if one["removable"]]
            after = page[-1]["id"]
        return found

    async def remove(self, identity: str, days: float) -> bool:
        """Remove one with its files, unless it is restored or registered meanwhile; return whether it was removed."""
        return bool((await self._call("POST", {"id": identity, "days": days}))["removed"])

    async def _call(self, method: str, values: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return await self._client.call(method, _EXPIRED, values)
        except RejectedError as error:
            raise StorageError(
                f"{error}; RUNS_KEEP_DAYS is for the stack's own MLflow only, leave it empty."
            ) from error


class JobPages:
    """Finds the pages of a job at MLflow, as paths below its address; None if there is none.

    Every method gets the ids of the job's runs, its own first, and raises UnreachableError or AccessError, as
    `close_runs` does.
    """

    def __init__(self, client: AsyncMlflowRest) -> None:
        self._client = client

    async def run(self, run_ids: Iterable[str]) -> str | None:
        """Return the page of the first run that was not deleted."""
        run = await self._first(run_ids)
        return f"#/experiments/{run['experiment_id']}/runs/{run['run_id']}" if run else None

    async def model(self, run_ids: Iterable[str]) -> str | None:
        """Return the page of the latest model version of that run, or else of a model that the run has logged."""
        run = await self._first(run_ids)
        if run is None:
            return None
        query = {"filter": f"run_id = '{run['run_id']}'", "max_results": 1}
        versions = (await self._client.call("GET", "model-versions/search", query)).get("model_versions", [])
        if versions:
            return f"#/models/{quote(versions[0]['name'], safe='')}/versions/{versions[0]['version']}"
        logged = {"experiment_ids": [run["experiment_id"]], "filter": f"source_run_id = '{run['run_id']}'"}
        models = (await self._client.call("POST", "logged-models/search", logged)).get("models", [])
        return f"#/experiments/{run['experiment_id']}/models/{models[0]['info']['model_id']}" if models else None

    async def _first(self, run_ids: Iterable[str]) -> dict[str, Any] | None:
        for run_id in run_ids:
            if (run := await _run(self._client, run_id)) and run["info"]["lifecycle_stage"] == "active":
                info: dict[str, Any] = run["info"]
                return info
        return None


async def _run(client: AsyncMlflowRest, run_id: str) -> dict[str, Any] | None:
    """Return a run; None if MLflow does not have it."""
    try:
        found: dict[str, Any] = (await client.call("GET", "runs/get", {"run_id": run_id}))["run"]
    except RejectedError as error:
        if error.code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise
    return found


async def _close(client: AsyncMlflowRest, run_id: str, status: str, reason: str, attempt: int | None) -> bool:
    """End a run, unless it has ended or was continued since it was found."""
    run = await _run(client, run_id)
    if run is None or run["info"]["status"] not in _OPEN or _continued(run, attempt):
        return False
    tag = {"run_id": run_id, "key": TAG_END_REASON, "value": reason[:_REASON_CHARACTERS]}
    await client.call("POST", "runs/set-tag", tag)
    await client.call("POST", "runs/update", {"run_id": run_id, "status": status, "end_time": time.time_ns() // 10**6})
    return True


def _continued(run: Mapping[str, Any], attempt: int | None) -> bool:
    tags = {tag["key"]: tag["value"] for tag in run.get("data", {}).get("tags", [])}
    return attempt is not None and tags.get(TAG_ATTEMPT, str(attempt)) != str(attempt)
