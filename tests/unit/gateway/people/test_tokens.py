"""Tokens of people: what is stored, and when a revocation takes effect."""

import asyncio
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, select, update
from sqlalchemy.orm import Session
from stored import do

from mlplatform.api.people import Role
from mlplatform_gateway.audit.store import PLATFORM
from mlplatform_gateway.errors import LoginCodeError, TokenError
from mlplatform_gateway.people.rights import Principal
from mlplatform_gateway.people.schema import TokenRow
from mlplatform_gateway.people.sessions import Sessions
from mlplatform_gateway.people.store import People
from mlplatform_gateway.people.tokens import Tokens


def alice(engine: Engine) -> str:
    """A token of alice, who leads team vision."""
    people = People(engine)
    do(people.add_team("vision", {}, PLATFORM))
    code = do(people.add("alice", PLATFORM, "vision", lead=True)).code
    return do(Tokens(engine).exchange(code, "10.0.0.7")).token


def test_token_identifies_person_and_teams(engine: Engine) -> None:
    token = alice(engine)
    assert re.fullmatch(r"mlp_[a-z0-9]{20}_[A-Za-z0-9]{40}", token)
    assert do(Tokens(engine).check(token)) == Principal("alice", {"vision": Role.LEAD}, False, token.split("_")[1])


def test_database_keeps_no_secret(engine: Engine, tmp_path: Path) -> None:
    people = People(engine)
    code = do(people.add("ada", PLATFORM, administrator=True)).code
    token = do(Tokens(engine).exchange(code, "")).token
    code = do(people.add("ada", PLATFORM)).code
    content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert token.split("_")[1].encode() in content
    assert token.split("_")[2].encode() not in content
    assert not any(part in content for part in (code.encode(), code.replace("-", "").encode()))


def test_revocation_by_another_gateway_takes_effect_at_once(engine: Engine) -> None:
    token, tokens = alice(engine), Tokens(engine)
    do(tokens.check(token))
    do(Tokens(engine).revoke(token.split("_")[1], PLATFORM))
    with pytest.raises(TokenError, match="was revoked"):
        do(tokens.check(token))


def test_time_of_use_is_stored_every_five_minutes(engine: Engine) -> None:
    token, moments = alice(engine), []
    for minutes in (None, 4, 6):
        if minutes is not None:
            with Session(engine) as session, session.begin():
                session.execute(update(TokenRow).values(used=datetime.now(UTC) - timedelta(minutes=minutes)))
        do(Tokens(engine).check(token))
        with Session(engine) as session:
            used = session.scalars(select(TokenRow.used)).one()
        assert used
        moments.append(round((datetime.now(UTC) - used).total_seconds() / 60))
    assert moments == [0, 4, 0]


def test_of_two_log_ins_with_a_code_one_succeeds(engine: Engine) -> None:
    code = do(People(engine).add("ada", PLATFORM, administrator=True)).code

    async def both() -> list[Any]:
        return await asyncio.gather(*(Tokens(engine).exchange(code, "") for _ in range(2)), return_exceptions=True)

    assert sorted(isinstance(answer, LoginCodeError) for answer in do(both())) == [False, True]


def test_code_that_another_log_in_uses_first_is_rejected(engine: Engine) -> None:
    """On Postgres, both may read the code before either deletes it."""
    code = do(People(engine).add("ada", PLATFORM, administrator=True)).code

    def use_first(_: object, cursor: Any, statement: str, *__: object) -> None:
        if statement.startswith("DELETE FROM login_codes"):
            cursor.execute("DELETE FROM login_codes")

    event.listen(engine, "before_cursor_execute", use_first)
    with pytest.raises(LoginCodeError, match="used a moment ago"):
        do(Tokens(engine).exchange(code, ""))
    event.remove(engine, "before_cursor_execute", use_first)
    assert do(Tokens(engine).all()) == []


def test_changed_rights_apply_at_once(engine: Engine) -> None:
    token, tokens = alice(engine), Tokens(engine)
    people = People(engine)
    do(tokens.check(token))
    do(people.add("alice", PLATFORM, administrator=True))
    assert do(tokens.check(token)).administrator
    do(people.remove("alice", PLATFORM))
    with pytest.raises(TokenError, match="was revoked"):
        do(tokens.check(token))


def test_token_is_refused_for_next_person_of_the_name(engine: Engine) -> None:
    """A log-in at the moment of the removal leaves a token that is not revoked."""
    token = alice(engine)
    do(People(engine).remove("alice", PLATFORM))
    with Session(engine) as session, session.begin():
        session.execute(update(TokenRow).values(revoked=None))
    do(People(engine).add("alice", PLATFORM, administrator=True))
    with pytest.raises(TokenError, match="was revoked"):
        do(Tokens(engine).check(token))
    opened = do(Sessions(engine, lambda: "shared").open(token_id=token.split("_")[1]))
    assert do(Sessions(engine, lambda: "shared").holder(opened)) is None


def test_codes_and_tokens_end_as_documented(engine: Engine) -> None:
    invited = do(People(engine).add("ada", PLATFORM, administrator=True))
    issued = do(Tokens(engine).exchange(invited.code, ""))
    left = [(moment - datetime.now(UTC)).total_seconds() for moment in (invited.expires, issued.expires)]
    assert left == pytest.approx([24 * 3600, 90 * 86400], abs=300)


def test_replaced_token_keeps_the_time_of_its_revocation(engine: Engine) -> None:
    token_id = alice(engine).split("_")[1]
    do(Tokens(engine).revoke(token_id, PLATFORM))
    before = {token.id: token.revoked for token in do(Tokens(engine).all())}
    do(Tokens(engine).exchange(do(People(engine).add("alice", PLATFORM)).code, "", token_id))
    assert {token.id: token.revoked for token in do(Tokens(engine).all())}[token_id] == before[token_id]
