"""Ends the MLflow runs of a process that cannot do so any more: MLflow has no heartbeat, they would stay RUNNING."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import httpx

from mlplatform.contract import TAG_ATTEMPT, TAG_END_REASON, TAG_JOB, TAG_ROLE
from mlplatform.credentials import read_mlflow_account
from mlplatform.errors import AccessError, UnreachableError

_OPEN = ("RUNNING", "SCHEDULED")

_REASON_CHARACTERS = 5000
"""MLflow takes 8000 in a tag, older ones 5000."""

_PAGE = 1000

_EXPERIMENTS = 500
"""Experiments a search of runs."""

_SECONDS = 30.0

_UNQUOTED = re.compile(r"[^'\"\\;]+")
"""What stands in a filter's string as it is; MLflow's grammar knows no escape."""

_NO_LONGER_THERE = 404


def mlflow_client(address: str, account_file: Path | None = None) -> httpx.AsyncClient:
    """A client for `close_runs`; the file is one that `credentials.mlflow_account` has written.

    Raises:
        SettingsError: there is no such file.
    """
    return httpx.AsyncClient(
        base_url=f"{address.rstrip('/')}/api/2.0/mlflow/",
        auth=read_mlflow_account(account_file) if account_file else None,
        timeout=_SECONDS,
    )


async def close_runs(
    client: httpx.AsyncClient,
    job_id: str,
    status: Literal["FINISHED", "FAILED", "KILLED"],
    reason: str,
    attempt: int | None = None,
) -> int:
    """End every run of a job that is still open, in whatever experiment, those that user code started included.

    Each gets the reason as a tag first and then its end, so one that has ended by itself is left as it is, and what a
    crash leaves half done is done by the next call.

    Args:
        client: of `mlflow_client`.
        attempt: end only what this attempt has opened, without the job's own run, which the next attempt continues.

    Returns:
        How many runs were ended.

    Raises:
        UnreachableError: MLflow is away, or what answers is not MLflow; to be called again, later.
        AccessError: MLflow refuses the account.
    """
    closed = 0
    # All are looked for before the first is ended: a page begins after so many runs as the search still finds.
    for run_id in await _find(client, job_id, attempt):
        closed += await _close(client, run_id, job_id, status, reason, attempt)
    return closed


async def _find(client: httpx.AsyncClient, job_id: str, attempt: int | None) -> list[str]:
    """Ids of the runs to end."""
    experiments = [
        experiment["experiment_id"] for experiment in await _all(client, "experiments/search", "experiments", {})
    ]
    # An odd id cannot be asked for; then it is every open run that is looked at.
    wanted = f"tags.`{TAG_JOB}` = '{job_id}' and " if _UNQUOTED.fullmatch(job_id) else ""
    found = []
    for start in range(0, len(experiments), _EXPERIMENTS):
        for status in _OPEN:
            query = {
                "experiment_ids": experiments[start : start + _EXPERIMENTS],
                "filter": f"{wanted}attributes.status = '{status}'",
            }
            found += await _all(client, "runs/search", "runs", query)
    return [run["info"]["run_id"] for run in found if _is_to_end(run, job_id, attempt)]


async def _close(
    client: httpx.AsyncClient, run_id: str, job_id: str, status: str, reason: str, attempt: int | None
) -> bool:
    """End a run, unless it has ended or was taken over since it was found."""
    run = (await _call(client, "GET", "runs/get", {"run_id": run_id})).get("run")
    if run is None or not _is_to_end(run, job_id, attempt):
        return False
    tag = {"run_id": run_id, "key": TAG_END_REASON, "value": reason[:_REASON_CHARACTERS]}
    end = {"run_id": run_id, "status": status, "end_time": time.time_ns() // 1_000_000}
    await _call(client, "POST", "runs/set-tag", tag)
    await _call(client, "POST", "runs/update", end)
    return True


def _is_to_end(run: Mapping[str, Any], job_id: str, attempt: int | None) -> bool:
    tags = {tag["key"]: tag["value"] for tag in run.get("data", {}).get("tags", [])}
    if run["info"]["status"] not in _OPEN or tags.get(TAG_JOB) != job_id:
        return False
    return attempt is None or (tags.get(TAG_ATTEMPT) == str(attempt) and tags.get(TAG_ROLE) != "job")


async def _all(client: httpx.AsyncClient, path: str, field: str, query: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every page of a search."""
    found: list[dict[str, Any]] = []
    token = None
    while True:
        page = {"max_results": _PAGE, **query, **({"page_token": token} if token else {})}
        answer = await _call(client, "POST", path, page)
        found += answer.get(field, [])
        token = answer.get("next_page_token")
        if not token:
            return found


async def _call(client: httpx.AsyncClient, method: str, path: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """MLflow's answer; empty where it says that the run is not there any more."""
    address = str(client.base_url).removesuffix("/api/2.0/mlflow/")
    sent: dict[str, Any] = {"params": values} if method == "GET" else {"json": values}
    try:
        answer = await client.request(method, path, **sent)
    except httpx.TransportError as error:
        raise UnreachableError(f"MLflow at {address} does not answer ({error!r}); start it.") from error
    if answer.status_code in (401, 403):
        raise AccessError(f"MLflow at {address} refuses the account ({answer.status_code}); correct its file.")
    try:
        said = answer.json()
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise UnreachableError(f"What answers at {address} is not MLflow ({answer.status_code}); check the address.")
    if answer.status_code == _NO_LONGER_THERE and said.get("error_code") == "RESOURCE_DOES_NOT_EXIST":
        return {}
    if answer.status_code != httpx.codes.OK:
        raise UnreachableError(
            f"MLflow at {address} answers {path} with {answer.status_code}: {answer.text[:300]}; see its log."
        )
    return said
