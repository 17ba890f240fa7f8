"""A job's runs at MLflow: their pages, and their end when the process is gone, as MLflow has no heartbeat."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from mlplatform.contract import CHECKSUMS, TAG_ATTEMPT, TAG_END_REASON, TAG_JOB, TAG_ROLE
from mlplatform.errors import StorageError, UnreachableError
from mlplatform.files import checksums
from mlplatform.mlflow_rest import Account, AsyncMlflowRest, RejectedError, account_in
from mlplatform.settings.accounts import TrackingAccount

_OPEN = ("RUNNING", "SCHEDULED")

_REASON_CHARACTERS = 5000
"""MLflow 3.17 accepts 8000 in a tag, older versions 5000."""

_PAGE = 1000

_EXPIRED = "mlplatform/expired"
"""Route of our own in the stack's MLflow (`compat.mlflow_retention`)."""

_SCHEME = "mlflow-artifacts:/"

_EXPERIMENTS = 500
"""Experiments per search of runs."""

_REMEDY = "name the file of an account in MLPLATFORM_TRACKING_ACCOUNT"

_UNQUOTED = re.compile(r"[^'\"\\;]+")
"""Text that a string in a filter can hold; MLflow's grammar has no escapes."""


def mlflow_client(address: str, account_file: Path | None = None) -> AsyncMlflowRest:
    """Return a client for `close_runs`.

    Args:
        address: address of MLflow.
        account_file: file that `credentials.mlflow_account` has written; None for the account in the environment.

    Raises:
        SettingsError: there is no such file.
    """
    if account_file is not None:
        return AsyncMlflowRest(address, account_in(account_file))
    login = TrackingAccount.load().login
    return AsyncMlflowRest(address, Account(login, remedy=_REMEDY))


async def close_runs(
    client: AsyncMlflowRest,
    job_id: str,
    status: Literal["FINISHED", "FAILED", "KILLED"],
    reason: str,
    attempt: int | None = None,
) -> int:
    """End every open run of a job, in any experiment, including those that user code started.

    Each first gets the reason as a tag and is then ended. A run that has ended by itself is left as it is; a call that
    a crash interrupts is completed by the next one.

    Args:
        client: of `mlflow_client`.
        job_id: id of the job, as in the runs' tag.
        status: the runs' status from now on.
        reason: kept as a tag of each run, cut to 5000 characters.
        attempt: end only runs that this attempt has opened, without the job's own run, which the next one continues.

    Returns:
        Number of runs that were ended.

    Raises:
        UnreachableError: MLflow is unavailable or fails, or the server is not MLflow; call again later.
        AccessError: MLflow rejected the account.
    """
    closed = 0
    try:
        # All are searched before the first is ended: a page begins after as many runs as the search still finds.
        for run_id in await _find(client, job_id, attempt):
            closed += await _close(client, run_id, job_id, status, reason, attempt)
    except RejectedError as error:
        raise UnreachableError(f"{error}; see its log.") from error
    return closed


async def jobs_with_open_runs(client: AsyncMlflowRest) -> set[str]:
    """Return the ids of all jobs with an open run; one call replaces those of `close_runs` for jobs without any.

    Raises:
        UnreachableError, AccessError: as `close_runs`.
    """
    try:
        runs = await _open_runs(client)
    except RejectedError as error:
        raise UnreachableError(f"{error}; see its log.") from error
    return {tag["value"] for run in runs for tag in run.get("data", {}).get("tags", []) if tag["key"] == TAG_JOB}


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


@dataclass(frozen=True)
class Version:
    """A version of a registered model.

    Attributes:
        name: name of the model.
        number: its number.
        source: its source, as MLflow has it.
        created: time of the registration, in milliseconds since 1970.
    """

    name: str
    number: str
    source: str
    created: int


class ModelFiles:
    """Files of registered models; every method raises UnreachableError or AccessError, as `close_runs` does."""

    def __init__(self, client: AsyncMlflowRest) -> None:
        self._client = client

    async def versions(self) -> list[Version]:
        """Return all versions of all models."""
        found = await self._client.all("GET", "model-versions/search", "model_versions", {"max_results": _PAGE})
        return [
            Version(one["name"], str(one["version"]), one.get("source", ""), int(one["creation_timestamp"]))
            for one in found
        ]

    async def digests(self, version: Version) -> dict[str, str]:
        """Return path -> SHA-256 of each file of a version.

        The checksums that `registry.register` has computed are taken where they name the same files.

        Returns:
            Empty if the version was deleted or has no files on this server.
        """
        try:
            folder = await self._folder(version)
            if folder is None:
                return {}
            paths = [path async for path in self._walk(folder, "")]
            if CHECKSUMS in paths:
                paths.remove(CHECKSUMS)
                sums = _parsed(b"".join([part async for part in self._client.read_file(f"{folder}/{CHECKSUMS}")]))
                if sums.keys() == set(paths):
                    return sums
            return {path: await self._sha256(f"{folder}/{path}") for path in paths}
        except RejectedError:
            return {}

    async def _folder(self, version: Version) -> str | None:
        named = {"name": version.name, "version": version.number}
        location = (await self._client.call("GET", "model-versions/get-download-uri", named)).get("artifact_uri", "")
        if match := re.fullmatch(r"models:/(m-[^/]+)", location):
            model = await self._client.call("GET", f"logged-models/{match[1]}")
            location = model["model"]["info"].get("artifact_uri", "")
        return location.removeprefix(_SCHEME).strip("/") if location.startswith(_SCHEME) else None

    async def _walk(self, folder: str, below: str) -> AsyncIterator[str]:
        for entry in await self._client.list_files(f"{folder}/{below}".rstrip("/")):
            path = f"{below}{entry['path'].rstrip('/').rpartition('/')[2]}"
            if entry.get("is_dir"):
                async for file in self._walk(folder, f"{path}/"):
                    yield file
            else:
                yield path

    async def _sha256(self, path: str) -> str:
        hasher = hashlib.sha256()
        async for part in self._client.read_file(path):
            hasher.update(part)
        return hasher.hexdigest()


def _parsed(content: bytes) -> checksums.Sums:
    """Return the checksums in a file that anybody may have written; empty if it has none."""
    try:
        return {path: digest for path, digest in checksums.parse(content.decode()).items() if len(digest) == 64}
    except (ValueError, StorageError):
        return {}


class JobPages:
    """Finds the pages of a job at MLflow, as paths below its address; None if there is none.

    Any run may name the job in a tag. If the job has an owner, only runs that MLflow records as the owner's count.
    Every method raises UnreachableError or AccessError, as `close_runs` does.
    """

    def __init__(self, client: AsyncMlflowRest) -> None:
        self._client = client

    async def run(self, job_id: str, owner: str | None = None) -> str | None:
        """Return the page of a job's own run, or of the first run that its code has started."""
        run = await self._run_of(job_id, owner)
        return f"#/experiments/{run['experiment_id']}/runs/{run['run_id']}" if run else None

    async def model(self, job_id: str, owner: str | None = None) -> str | None:
        """Return the page of the latest model version of a job's run, or else of a model that the run has logged."""
        run = await self._run_of(job_id, owner)
        if run is None:
            return None
        query = {"filter": f"run_id = '{run['run_id']}'", "max_results": 1}
        versions = (await self._client.call("GET", "model-versions/search", query)).get("model_versions", [])
        if versions:
            return f"#/models/{quote(versions[0]['name'], safe='')}/versions/{versions[0]['version']}"
        logged = {"experiment_ids": [run["experiment_id"]], "filter": f"source_run_id = '{run['run_id']}'"}
        models = (await self._client.call("POST", "logged-models/search", logged)).get("models", [])
        return f"#/experiments/{run['experiment_id']}/models/{models[0]['info']['model_id']}" if models else None

    async def _run_of(self, job_id: str, owner: str | None) -> dict[str, Any] | None:
        if not _UNQUOTED.fullmatch(job_id):
            return None
        runs = await _runs(self._client, f"tags.`{TAG_JOB}` = '{job_id}'")
        runs = [run for run in runs if owner in (None, run["info"].get("user_id"))]
        own = [run for run in runs if _tags(run).get(TAG_ROLE) == "job"]
        first = min(own or runs, key=lambda run: run["info"]["start_time"], default=None)
        return first["info"] if first else None


async def _find(client: AsyncMlflowRest, job_id: str, attempt: int | None) -> list[str]:
    """Return the ids of the runs to end."""
    # No filter can hold an id with quotes or backslashes; then every open run is read.
    wanted = f"tags.`{TAG_JOB}` = '{job_id}' and " if _UNQUOTED.fullmatch(job_id) else ""
    return [run["info"]["run_id"] for run in await _open_runs(client, wanted) if _is_to_end(run, job_id, attempt)]


async def _open_runs(client: AsyncMlflowRest, wanted: str = "") -> list[dict[str, Any]]:
    """Return the open runs of all experiments; `wanted` is the beginning of a filter that ends with "and "."""
    return await _runs(client, *(f"{wanted}attributes.status = '{status}'" for status in _OPEN))


async def _runs(client: AsyncMlflowRest, *filters: str) -> list[dict[str, Any]]:
    """Return the runs of all experiments that one of the filters finds."""
    found_experiments = await client.all("POST", "experiments/search", "experiments", {"max_results": _PAGE})
    experiments = [experiment["experiment_id"] for experiment in found_experiments]
    found = []
    for start in range(0, len(experiments), _EXPERIMENTS):
        for wanted in filters:
            some = experiments[start : start + _EXPERIMENTS]
            query = {"max_results": _PAGE, "experiment_ids": some, "filter": wanted}
            found += await client.all("POST", "runs/search", "runs", query)
    return found


def _tags(run: Mapping[str, Any]) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in run.get("data", {}).get("tags", [])}


async def _close(
    client: AsyncMlflowRest, run_id: str, job_id: str, status: str, reason: str, attempt: int | None
) -> bool:
    """End a run, unless it has ended or was taken over since it was found."""
    tag = {"run_id": run_id, "key": TAG_END_REASON, "value": reason[:_REASON_CHARACTERS]}
    try:
        run = (await client.call("GET", "runs/get", {"run_id": run_id}))["run"]
        if not _is_to_end(run, job_id, attempt):
            return False
        end = {"run_id": run_id, "status": status, "end_time": time.time_ns() // 1_000_000}
        await client.call("POST", "runs/set-tag", tag)
        await client.call("POST", "runs/update", end)
    except RejectedError as error:
        if error.code == "RESOURCE_DOES_NOT_EXIST":
            return False
        raise
    return True


def _is_to_end(run: Mapping[str, Any], job_id: str, attempt: int | None) -> bool:
    tags = _tags(run)
    if run["info"]["status"] not in _OPEN or tags.get(TAG_JOB) != job_id:
        return False
    return attempt is None or (tags.get(TAG_ATTEMPT) == str(attempt) and tags.get(TAG_ROLE) != "job")
