"""Digests of registered models: recorded once per version, after a report or by the search for versions without."""

import hashlib
from collections.abc import Iterator

import pytest
from gateway_parts import Gateway
from ray_head import served
from stand_in_mlflow import StandInMlflow

from mlplatform.client.mlflow_rest import Account
from mlplatform.files import checksums
from mlplatform_gateway.mlflow.client import ModelFiles
from mlplatform_gateway.mlflow.digests import ModelDigestRow, ModelDigests
from mlplatform_gateway.mlflow.rest import AsyncMlflowRest

FILES = {"MLmodel": b"flavor", "data/weights #1.bin": b"weights", "data/code/a.py": b"pass"}
DIGESTS = {path: hashlib.sha256(content).hexdigest() for path, content in FILES.items()}


@pytest.fixture
def mlflow() -> StandInMlflow:
    return StandInMlflow("gateway", "its password")


@pytest.fixture
def address(mlflow: StandInMlflow) -> Iterator[str]:
    with served(mlflow.app) as found:
        yield found


async def record(gateway: Gateway, address: str, source: str, created: int = 1) -> ModelDigestRow | None:
    """Record what is missing, as a new process of the gateway does; return the digests of one version."""
    async with AsyncMlflowRest(address, Account(("gateway", "its password"))) as client:
        digests = ModelDigests(gateway.store.engine, ModelFiles(client))
        await digests.record_missing()
        return await digests.of(source, created)


async def recorded(gateway: Gateway, address: str, source: str, created: int = 1) -> ModelDigestRow:
    found = await record(gateway, address, source, created)
    assert found is not None, source
    return found


async def test_digest_of_each_file_is_recorded_once(idle: Gateway, mlflow: StandInMlflow, address: str) -> None:
    source = mlflow.register("net", FILES)
    found = await recorded(idle, address, source)
    assert found.files == DIGESTS
    folder = mlflow.versions[0]["folder"]
    mlflow.files[f"{folder}/data/weights #1.bin"] = b"replaced"
    again = await recorded(idle, address, source)
    assert (again.files, again.recorded) == (found.files, found.recorded)


async def test_checksums_of_registration_are_taken_if_they_name_all_files(
    idle: Gateway, mlflow: StandInMlflow, address: str
) -> None:
    claimed = dict.fromkeys(FILES, "0" * 64)
    whole = mlflow.register("whole", {**FILES, checksums.FILE: checksums.render(claimed).encode()})
    part = mlflow.register("part", {**FILES, checksums.FILE: checksums.render({"MLmodel": "0" * 64}).encode()})
    broken = mlflow.register("broken", {**FILES, checksums.FILE: b"\xff../x"})
    for source, expected in ((whole, claimed), (part, DIGESTS), (broken, DIGESTS)):
        found = await recorded(idle, address, source)
        assert found.files == expected, source


async def test_version_without_files_or_place_here_waits(idle: Gateway, mlflow: StandInMlflow, address: str) -> None:
    empty = mlflow.register("empty", {})
    source = mlflow.register("net", FILES)
    gone = {"name": "gone", "version": "9", "source": "s3://elsewhere/x", "creation_timestamp": 1}
    mlflow.versions.insert(0, gone)
    assert await record(idle, address, source) is not None
    assert await record(idle, address, empty) is None
    mlflow.files[f"{mlflow.versions[1]['folder']}/MLmodel"] = b"later"
    found = await recorded(idle, address, empty)
    assert found.files.keys() == {"MLmodel"}


async def test_later_version_of_same_source_has_digests_of_its_own(
    idle: Gateway, mlflow: StandInMlflow, address: str
) -> None:
    source = mlflow.register("net", FILES, created=1)
    first = await recorded(idle, address, source)
    again = {**mlflow.versions[0], "version": "2", "creation_timestamp": 2}
    mlflow.versions.append(again)
    mlflow.files[f"{again['folder']}/MLmodel"] = b"another flavor"
    second = await recorded(idle, address, source, created=2)
    assert {path for path in FILES if first.files[path] != second.files[path]} == {"MLmodel"}
    kept = await recorded(idle, address, source, created=1)
    assert (kept.files, kept.recorded) == (first.files, first.recorded)
