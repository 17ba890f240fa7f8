"""The database of the jobs: its schema, a repeated upgrade, outages, and failed writes."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from stored import add, begin, do

from mlplatform.errors import UnreachableError
from mlplatform_gateway.database.migrations.upgrade import upgrade
from mlplatform_gateway.jobs.details import JobList
from mlplatform_gateway.jobs.store import JobStore


@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.ping(),
        lambda store: JobList(store.engine).entries(),
        lambda store: store.request_stop("mine"),
        lambda store: anyio.to_thread.run_sync(upgrade, store.engine),
    ],
    ids=["ping", "list", "stop", "upgrade"],
)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_unavailable_database_is_named(
    tmp_path: Path, closed_port: int, kind: str, ask: Callable[[JobStore], Coroutine[Any, Any, Any]]
) -> None:
    nowhere = {
        "sqlite": f"sqlite:///{tmp_path}/none/gateway.db",
        "postgres": f"postgresql+psycopg2://a:b@127.0.0.1:{closed_port}/gateway",
    }
    with pytest.raises(UnreachableError, match="The gateway's database does not answer") as error:
        do(ask(JobStore(nowhere[kind])))
    assert len(str(error.value).splitlines()) == 1


def test_failed_step_is_rolled_back(store: JobStore) -> None:
    add(store)
    begin(store)
    with pytest.raises(KeyError):
        do(store.seen("mine", 1, {"driver_node_id": "n"}, "a"))
    assert not do(store.get("mine")).attempts[0].accepted
