"""Access keys of attempts at MinIO: each attempt of a person's job gets one, which ends with it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from gateway_parts import ADDRESS, Gateway, is_true, ray
from ray_head import served
from sqlalchemy import select
from sqlalchemy.orm import Session
from stand_in_minio import ACCOUNT, SECRET, StandInMinio
from test_attempt_tokens import PASSWORD, started

from mlplatform.errors import UnreachableError
from mlplatform.gateway.control import housekeeping
from mlplatform.gateway.control.attempt_tokens import AttemptTokens
from mlplatform.gateway.control.key_rights import attempt_policy
from mlplatform.gateway.jobs.states import State
from mlplatform.gateway.people.schema import TokenRow
from mlplatform.gateway.upstream.access_keys import AccessKeys

KEY, KEY_SECRET = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"


@pytest.fixture
def minio() -> StandInMinio:
    return StandInMinio()


@pytest.fixture
def keys(minio: StandInMinio) -> Iterator[AccessKeys]:
    with served(minio.app) as address:
        yield AccessKeys(address, (ACCOUNT, SECRET))


@pytest.fixture(autouse=True)
def short_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "_CLEAN_SECONDS", 0.05)
    monkeypatch.setattr(housekeeping, "_CLOSE_AGAIN_SECONDS", 0.05)


def tokens(gateway: Gateway) -> list[str]:
    with Session(gateway.store.engine) as session:
        return list(session.scalars(select(TokenRow.id)))


async def end(gateway: Gateway) -> None:
    gateway.head.jobs[gateway.head.submitted[-1]] = ray("SUCCEEDED")
    await gateway.until_state(State.SUCCEEDED)


def test_attempt_gets_key_with_rights_of_its_job(gateway: Gateway, minio: StandInMinio) -> None:
    async def scenario() -> dict[str, str]:
        async with gateway.at_work():
            return await started(gateway)

    variables = asyncio.run(scenario())
    (made,) = minio.keys.values()
    assert (variables[KEY], variables[KEY_SECRET]) == (made["accessKey"], made["secretKey"])
    assert variables[PASSWORD] == f"mlp_{made['accessKey']}_{made['secretKey']}"
    assert made["policy"] == attempt_policy("mine", "vision")
    assert made["description"] == "job mine, attempt 1"


def test_job_of_shared_token_gets_no_key(gateway: Gateway, minio: StandInMinio) -> None:
    async def scenario() -> dict[str, str]:
        async with gateway.at_work():
            return await started(gateway, person=None)

    assert not {KEY, KEY_SECRET} & asyncio.run(scenario()).keys()
    assert not [request for request in minio.requests if request.startswith("PUT")]


@pytest.mark.parametrize("variable", [KEY, "AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_SESSION_TOKEN"])
def test_account_that_a_job_sets_is_not_mixed(gateway: Gateway, minio: StandInMinio, variable: str) -> None:
    async def scenario() -> dict[str, str]:
        async with gateway.at_work():
            return await started(gateway, **{variable: "own"})

    variables = asyncio.run(scenario())
    assert variables[variable] == "own"
    assert KEY_SECRET not in variables
    assert PASSWORD in variables
    assert minio.keys == {}


def test_key_is_removed_after_its_attempt(gateway: Gateway, minio: StandInMinio) -> None:
    async def scenario() -> None:
        async with gateway.at_work():
            await started(gateway)
            assert len(minio.keys) == 1
            await end(gateway)
            await gateway.until(lambda: is_true(not minio.keys and not tokens(gateway)))

    asyncio.run(scenario())


def test_key_of_running_attempt_stays_when_gateway_restarts(
    gateway: Gateway, minio: StandInMinio, keys: AccessKeys
) -> None:
    minio.keys["unknown"] = {}

    async def scenario() -> None:
        async with gateway.at_work():
            running = await started(gateway)
        minio.keys["left"] = {}
        await AttemptTokens(gateway.store.engine, ADDRESS, keys).tidy()
        assert set(minio.keys) == {running[KEY]}

    asyncio.run(scenario())


def test_keys_are_removed_once_minio_is_available_again(
    gateway: Gateway, minio: StandInMinio, keys: AccessKeys
) -> None:
    async def scenario() -> None:
        async with gateway.at_work():
            await started(gateway)
            minio.status = 503
            await end(gateway)
        after_restart = AttemptTokens(gateway.store.engine, ADDRESS, keys)
        with pytest.raises(UnreachableError, match=r"is not ready \(503, SlowDownWrite\)"):
            await after_restart.tidy()
        assert len(tokens(gateway)) == len(minio.keys) == 1
        minio.status = None
        await after_restart.tidy()
        assert (tokens(gateway), minio.keys) == ([], {})

    asyncio.run(scenario())


def test_rejected_account_is_reported_in_one_sentence(
    gateway: Gateway, minio: StandInMinio, caplog: pytest.LogCaptureFixture
) -> None:
    minio.status, minio.code = 403, "AccessDenied"

    async def scenario() -> None:
        async with gateway.at_work():
            await gateway.until(lambda: is_true(minio.requests.count("GET list-service-accounts") > 1))

    asyncio.run(scenario())
    (line,) = caplog.messages
    assert line.endswith("rejects the account attempts (AccessDenied); `make up` sets its password and rights again.")


def test_attempt_waits_for_minio_and_gets_one_key(gateway: Gateway, minio: StandInMinio) -> None:
    minio.status = 503

    async def scenario() -> None:
        async with gateway.at_work():
            begun = asyncio.create_task(started(gateway))
            await gateway.until(lambda: is_true(minio.requests.count("PUT add-service-account") > 2))
            assert gateway.head.submitted == []
            assert await gateway.state() == State.STARTING
            minio.status = None
            variables = await begun
            assert set(minio.keys) == {variables[KEY]} == set(tokens(gateway))

    asyncio.run(scenario())


def test_repeated_start_uses_the_same_key(gateway: Gateway, minio: StandInMinio) -> None:
    gateway.head.refusal = UnreachableError("Ray's head is unavailable.")

    async def scenario() -> None:
        async with gateway.at_work():
            begun = asyncio.create_task(started(gateway))
            await gateway.until(lambda: is_true(len(gateway.head.requests) > 1))
            gateway.head.refusal = None
            await begun

    asyncio.run(scenario())
    sent = {request["runtime_env"]["env_vars"][KEY] for request in gateway.head.requests}
    assert sent == set(minio.keys) == set(tokens(gateway))


def test_key_of_deleted_job_ends_if_id_is_used_again(gateway: Gateway, minio: StandInMinio) -> None:
    async def scenario() -> None:
        async with gateway.at_work():
            former = (await started(gateway))[KEY]
            minio.status = 503
            await end(gateway)
            await gateway.store.delete("mine")
            await gateway.submit()
            await gateway.until_state(State.RUNNING)
            minio.status = None
            await gateway.until(lambda: is_true(former not in minio.keys))

    asyncio.run(scenario())
