"""Tokens of attempts: each attempt of a person's job gets one, which the gateway itself never accepts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gateway_parts import Gateway, ray
from queued import add_team
from sqlalchemy import select
from sqlalchemy.orm import Session

from mlplatform.contract import PERSON_TOKEN
from mlplatform.gateway.audit.log import PLATFORM
from mlplatform.gateway.control.attempt_tokens import AttemptTokens
from mlplatform.gateway.errors import TokenError
from mlplatform.gateway.jobs.states import State
from mlplatform.gateway.jobs.submission import Submission
from mlplatform.gateway.people.schema import TokenRow
from mlplatform.gateway.people.store import People
from mlplatform.gateway.people.tokens import Tokens
from mlplatform.secret_folder import TOKEN


async def started(gateway: Gateway, person: str | None = "alice", **variables: str) -> dict[str, str]:
    """Let the job `mine` of a person run; return the variables that Ray got."""
    await add_team(gateway, "vision")
    await People(gateway.store.engine).add("alice", PLATFORM, "vision")
    fields: dict[str, Any] = {"entrypoint": "true", "submission_id": "mine", "runtime_env": {"env_vars": variables}}
    job = Submission.model_validate(fields).job()
    job.person, job.team = person, "vision" if person else None
    await gateway.store.add(job)
    gateway.reconciler.wake()
    await gateway.until_state(State.RUNNING)
    found: dict[str, str] = gateway.head.requests[-1]["runtime_env"]["env_vars"]
    return found


def rows(gateway: Gateway) -> list[TokenRow]:
    with Session(gateway.store.engine) as session:
        return list(session.scalars(select(TokenRow)))


def test_attempt_gets_token_of_its_owner(gateway: Gateway) -> None:
    async def scenario() -> dict[str, str]:
        async with gateway.at_work():
            return await started(gateway)

    variables = asyncio.run(scenario())
    assert PERSON_TOKEN.fullmatch(variables[TOKEN])
    assert not [name for name in variables if name.startswith("MLFLOW_TRACKING_")], "jobs use the account of their node"
    (row,) = rows(gateway)
    assert (row.kind, row.owner, row.job_id, row.attempt) == ("job", "alice", "mine", 1)
    assert variables[TOKEN].split("_")[2] not in row.digest


def test_job_of_shared_token_keeps_mounted_account(gateway: Gateway) -> None:
    async def scenario() -> dict[str, str]:
        async with gateway.at_work():
            return await started(gateway, person=None)

    assert TOKEN not in asyncio.run(scenario())
    assert rows(gateway) == []


def test_gateway_does_not_accept_token_of_attempt(gateway: Gateway) -> None:
    async def scenario() -> None:
        async with gateway.at_work():
            token = (await started(gateway))[TOKEN]
        with pytest.raises(TokenError):
            await Tokens(gateway.store.engine).check(token)
        assert await Tokens(gateway.store.engine).all() == [], "people see tokens of attempts"

    asyncio.run(scenario())


def test_token_is_deleted_after_its_attempt(gateway: Gateway) -> None:
    async def scenario() -> None:
        tokens = AttemptTokens(gateway.store.engine)
        async with gateway.at_work():
            await started(gateway)
            await tokens.tidy()
            assert len(rows(gateway)) == 1
            gateway.head.jobs[gateway.head.submitted[-1]] = ray("SUCCEEDED")
            await gateway.until_state(State.SUCCEEDED)
            await tokens.tidy()

    asyncio.run(scenario())
    assert rows(gateway) == []
