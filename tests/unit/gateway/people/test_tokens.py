"""Tokens of people: what is stored, when a revocation takes effect, and the gateway without its database."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from sqlalchemy import Engine, event, select, text, update
from sqlalchemy.orm import Session
from stored import database_in

from mlplatform.gateway.audit.log import PLATFORM
from mlplatform.gateway.database.engine import connect
from mlplatform.gateway.errors import LoginCodeError, TokenError
from mlplatform.gateway.http.revocation import CHECK_SECONDS
from mlplatform.gateway.people.principal import Principal, Role
from mlplatform.gateway.people.schema import TokenRow
from mlplatform.gateway.people.sessions import Sessions
from mlplatform.gateway.people.store import People
from mlplatform.gateway.people.tokens import CACHE_SECONDS, Tokens

T = TypeVar("T")


def do(call: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(call)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = connect(database_in(tmp_path))
    yield engine
    engine.dispose()


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


def test_revocation_by_another_gateway_takes_effect_after_the_cache(engine: Engine) -> None:
    token = alice(engine)
    cached, uncached = Tokens(engine), Tokens(engine, cache_seconds=0)
    for tokens in (cached, uncached):
        do(tokens.check(token))
    do(Tokens(engine).revoke(token.split("_")[1], PLATFORM))
    assert do(cached.check(token)).person == "alice"
    with pytest.raises(TokenError, match="was revoked"):
        do(uncached.check(token))
    # Of a request that lasts, the token is checked this often.
    assert CACHE_SECONDS <= 30
    assert CACHE_SECONDS + CHECK_SECONDS < 60


def test_token_revoked_while_it_is_read_is_not_remembered(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    token, tokens = alice(engine), Tokens(engine)
    people, find = People(engine, tokens.forget), tokens._find
    ends = [
        lambda: tokens.revoke(token.split("_")[1], PLATFORM),
        lambda: people.remove("alice", PLATFORM),
    ]
    for end in ends:

        async def read_and_revoked(token_id: str, end: Callable[[], Coroutine[Any, Any, None]] = end) -> object:
            found = await find(token_id)
            await end()
            return found

        with Session(engine) as session, session.begin():
            session.execute(update(TokenRow).values(revoked=None))
        tokens.forget()
        with monkeypatch.context() as patch:
            patch.setattr(tokens, "_find", read_and_revoked)
            do(tokens.check(token))
        with pytest.raises(TokenError, match="was revoked"):
            do(tokens.check(token))


def test_known_token_is_accepted_without_database(engine: Engine) -> None:
    token = alice(engine)
    tokens = Tokens(engine, cache_seconds=0)
    session = do(Sessions(engine, lambda: "shared", tokens).open(token_id=token.split("_")[1]))
    sessions = Sessions(engine, lambda: "shared", tokens)
    assert do(sessions.holder(session)) == do(tokens.check(token))
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE tokens RENAME TO hidden"))
    assert do(tokens.check(token)).person == "alice"
    holder = do(sessions.holder(session))
    assert holder is not None
    assert holder.person == "alice"


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
    people = People(engine, tokens.forget)
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
