"""Downgrade of a database with people to the tables before them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from alembic import command
from sqlalchemy import inspect, text

from mlplatform.gateway.audit.log import PLATFORM
from mlplatform.gateway.jobs.store import JobStore
from mlplatform.gateway.jobs.submission import Submission
from mlplatform.gateway.migrations.upgrade import configured, upgrade
from mlplatform.gateway.people.sessions import Sessions
from mlplatform.gateway.people.store import People
from mlplatform.gateway.people.tokens import Tokens


async def fill(store: JobStore) -> None:
    """Add a person with a session and a job, and a session of the shared token."""
    await upgrade(store.engine)
    tokens = Tokens(store.engine)
    code = (await People(store.engine).add("ada", PLATFORM, administrator=True)).code
    token = (await tokens.exchange(code, "")).token
    sessions = Sessions(store.engine, lambda: "shared", tokens)
    await sessions.open(token_id=token.split("_")[1])
    await sessions.open()
    job = Submission.model_validate({"entrypoint": "true", "submission_id": "hers"}).job()
    job.person = job.user = "ada"
    await store.add(job)


def test_downgrade_keeps_jobs_and_ends_sessions_of_people(tmp_path: Path) -> None:
    store = JobStore(f"sqlite:///{tmp_path}/gateway.db")
    asyncio.run(fill(store))
    with store.engine.begin() as connection:
        command.downgrade(configured(connection), "0005")
    with store.engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM sessions")).scalar_one() == 1
        assert connection.execute(text('SELECT id, "user" FROM jobs')).all() == [("hers", "ada")]
        assert not {"people", "teams", "members", "tokens", "login_codes"} & set(inspect(connection).get_table_names())
    asyncio.run(upgrade(store.engine))
    assert asyncio.run(store.get("hers")).person is None
    store.engine.dispose()
