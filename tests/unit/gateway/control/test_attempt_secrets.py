"""Secrets of people on the way to Ray: their values never are, only a folder and a token that ends with the attempt."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from cryptography.fernet import Fernet
from gateway_parts import Gateway
from queued import add_team

from mlplatform.errors import SettingsError
from mlplatform.gateway.audit.log import PLATFORM
from mlplatform.gateway.jobs.states import State
from mlplatform.gateway.jobs.submission import Submission
from mlplatform.gateway.people.secrets import Secrets
from mlplatform.gateway.people.store import People
from mlplatform.secret_folder import FOLDER, TOKEN, folder_of


async def started(gateway: Gateway, **variables: str) -> dict[str, Any]:
    """Let the job `mine` of alice, who has a secret, run; return the request that Ray got."""
    await add_team(gateway, "vision")
    await People(gateway.store.engine).add("alice", PLATFORM, "vision")
    await Secrets(gateway.store.engine, Fernet.generate_key().decode()).put("alice", "KEY", b"of-alice", PLATFORM)
    fields: dict[str, Any] = {"entrypoint": "true", "submission_id": "mine", "runtime_env": {"env_vars": variables}}
    job = Submission.model_validate(fields).job()
    job.person, job.team = "alice", "vision"
    await gateway.store.add(job)
    async with gateway.at_work():
        await gateway.until_state(State.RUNNING)
    found: dict[str, Any] = gateway.head.requests[-1]
    return found


def test_ray_gets_folder_and_token_but_no_value(gateway: Gateway) -> None:
    request = asyncio.run(started(gateway))
    variables = request["runtime_env"]["env_vars"]
    assert variables[FOLDER] == folder_of(request["submission_id"])
    assert variables[TOKEN].startswith("mlp_")
    assert "of-alice" not in json.dumps(request)
    assert asyncio.run(gateway.store.get("mine")).runtime_env == {"env_vars": {}}


def test_variable_that_a_job_sets_takes_precedence(gateway: Gateway) -> None:
    variables = asyncio.run(started(gateway, **{FOLDER: "/own"}))["runtime_env"]["env_vars"]
    assert variables[FOLDER] == "/own"


def test_invalid_key_is_an_error(gateway: Gateway) -> None:
    with pytest.raises(SettingsError, match="is not one of cryptography"):
        Secrets(gateway.store.engine, "short")
