"""Tokens of attempts: each attempt gets one, with its owner's rights on the owner's things."""

import json

import pytest
from gateway_parts import ADDRESS, Gateway, add_alice, variables_of
from sqlalchemy import select
from sqlalchemy.orm import Session

from mlplatform.contract import PERSON_TOKEN
from mlplatform.secrets.secret_folder import TOKEN
from mlplatform_gateway.errors import TokenError
from mlplatform_gateway.jobs.attempt_tokens import AttemptTokens
from mlplatform_gateway.people.rights import SHARED, Attempt, Principal
from mlplatform_gateway.people.schema import TokenRow
from mlplatform_gateway.people.tokens import Tokens


@pytest.fixture(autouse=True)
async def alice(gateway: Gateway) -> None:
    await add_alice(gateway)


def rows(gateway: Gateway) -> list[TokenRow]:
    with Session(gateway.store.engine) as session:
        return list(session.scalars(select(TokenRow)))


async def test_attempt_gets_token_of_its_owner(gateway: Gateway) -> None:
    variables = await variables_of(gateway)
    assert PERSON_TOKEN.fullmatch(variables[TOKEN])
    assert not [name for name in variables if name.startswith("MLFLOW_TRACKING_")], "jobs use the account of their node"
    (row,) = rows(gateway)
    assert (row.kind, row.owner, row.job_id, row.attempt) == ("job", "alice", "mine", 1)
    assert variables[TOKEN].split("_")[2] not in row.digest


async def test_job_of_shared_token_has_token_but_no_other_account(gateway: Gateway) -> None:
    variables = await variables_of(gateway, person=None)
    assert not [name for name in variables if name.startswith("MLFLOW_TRACKING_")]
    principal = await AttemptTokens(gateway.store.engine, ADDRESS).check(variables[TOKEN])
    assert principal == Principal(attempt=Attempt("mine", 1, None, SHARED))


async def test_rays_clients_find_the_gateway_and_the_token(gateway: Gateway) -> None:
    variables = await variables_of(gateway)
    assert variables["RAY_API_SERVER_ADDRESS"] == ADDRESS
    assert json.loads(variables["RAY_JOB_HEADERS"]) == {"Authorization": f"Bearer {variables[TOKEN]}"}
    assert not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & variables.keys(), "`ray.init` would send it to the head"


@pytest.mark.parametrize(
    "own", [{"RAY_API_SERVER_ADDRESS": "http://other:8265"}, {"RAY_JOB_HEADERS": "{}"}], ids=lambda own: next(iter(own))
)
async def test_other_jobs_api_gets_no_token(gateway: Gateway, own: dict[str, str]) -> None:
    variables = await variables_of(gateway, **own)
    assert {name: variables[name] for name in variables if name.startswith(("RAY_API", "RAY_JOB_H"))} == own
    assert TOKEN in variables


async def test_attempt_acts_for_its_owner_until_it_ends(gateway: Gateway) -> None:
    tokens = AttemptTokens(gateway.store.engine, ADDRESS)
    token = (await variables_of(gateway))[TOKEN]
    found = await tokens.check(token)
    assert (found.person, found.administrator, dict(found.teams)) == ("alice", False, {})
    assert found.attempt
    assert (found.attempt.job, found.attempt.number, found.attempt.team) == ("mine", 1, "vision")
    assert found.attempt.owner.teams == {"vision": "member"}
    with pytest.raises(TokenError):
        await Tokens(gateway.store.engine).check(token)
    assert await Tokens(gateway.store.engine).all() == [], "people see tokens of attempts"
    for wrong in ("", "mlp_", f"{token[:-1]}{'a' if token[-1] != 'a' else 'b'}"):
        with pytest.raises(TokenError, match="Invalid authentication token"):
            await tokens.check(wrong)
    await gateway.end()
    with pytest.raises(TokenError, match="has ended, and its token with it"):
        await tokens.check(token)
