"""A job's runs at MLflow and their end when the process is gone, as MLflow has no heartbeat; and files of models."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mlplatform.client.mlflow_rest import Account, RejectedError
from mlplatform.contract import CHECKSUMS, TAG_ATTEMPT, TAG_END_REASON
from mlplatform.errors import StorageError, UnreachableError
from mlplatform.files import checksums
from mlplatform.secrets.credentials import read_mlflow_account
from mlplatform.settings.accounts import TrackingAccount
from mlplatform_gateway.mlflow.rest import AsyncMlflowRest

_OPEN = ("RUNNING", "SCHEDULED")

_REASON_CHARACTERS = 5000
"""MLflow 3.17 accepts 8000 in a tag, older versions 5000."""

_PAGE = 1000
_SCHEME = "mlflow-artifacts:/"

_EXPERIMENTS = 500
"""Experiments per search of runs."""


def mlflow_client(address: str, account_file: Path | None = None) -> AsyncMlflowRest:
    """Return a client for `close_runs`.

    Args:
        account_file: file that `credentials.write_mlflow_account` has written; None for the account in the environment.

    Raises:
        SettingsError: there is no such file.
    """
    if account_file is None:
        login, remedy = TrackingAccount.load().login, "name the file of an account in MLPLATFORM_TRACKING_ACCOUNT"
    else:
        login, remedy = read_mlflow_account(account_file), f"correct the account in {account_file}"
    return AsyncMlflowRest(address, Account(login, remedy=remedy))


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


@dataclass(frozen=True)
class Version:
    """A version of a registered model: its source as MLflow has it, created in milliseconds since 1970."""

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


async def get_run(client: AsyncMlflowRest, run_id: str) -> dict[str, Any] | None:
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
    run = await get_run(client, run_id)
    if run is None or run["info"]["status"] not in _OPEN or _continued(run, attempt):
        return False
    tag = {"run_id": run_id, "key": TAG_END_REASON, "value": reason[:_REASON_CHARACTERS]}
    await client.call("POST", "runs/set-tag", tag)
    await client.call("POST", "runs/update", {"run_id": run_id, "status": status, "end_time": time.time_ns() // 10**6})
    return True


def _continued(run: Mapping[str, Any], attempt: int | None) -> bool:
    tags = {tag["key"]: tag["value"] for tag in run.get("data", {}).get("tags", [])}
    return attempt is not None and tags.get(TAG_ATTEMPT, str(attempt)) != str(attempt)
