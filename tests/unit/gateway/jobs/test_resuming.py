"""Jobs that are resumed: the same job continues with its next attempt, behind those that wait already."""

import asyncio
from typing import Any

import pytest
from gateway_parts import NODE, Gateway, add, settled
from sqlalchemy import select
from sqlalchemy.orm import Session

from mlplatform.storage import fence
from mlplatform_gateway.errors import NotResumableError
from mlplatform_gateway.jobs.resuming import Resumption
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.jobs.states import State
from mlplatform_gateway.queue.planner.plan import queue
from mlplatform_gateway.usage.schema import UsageRow


async def ended(gateway: Gateway, status: str, **fields: Any) -> JobRow:
    """Let the job `mine` end with a status of Ray; return it."""
    await gateway.started(**fields)
    await gateway.end(status, message="It ended.", driver_exit_code=1)
    return await gateway.store.get("mine")


async def resume(gateway: Gateway, **changes: Any) -> JobRow:
    job = await Resumption(gateway.store.engine).resume("mine", "The job was resumed.", **changes)
    gateway.reconciler.wake()
    return job


@pytest.mark.parametrize("status", ["FAILED", "STOPPED"])
async def test_ended_job_continues_with_its_next_attempt(status: str, gateway: Gateway) -> None:
    before = await ended(gateway, status)
    again = await resume(gateway, limit_s=7200.0)
    assert (again.state, again.ended, again.exit_code) == (State.WAITING, None, None)
    assert again.sequence > before.sequence
    assert again.limit_s == 7200
    await gateway.until_state(State.RUNNING)
    assert await asyncio.to_thread(fence.allowed, "mine") == 2
    await gateway.end()
    job = await gateway.store.get("mine")
    assert [attempt.outcome for attempt in job.attempts] == [status, "SUCCEEDED"]
    assert not job.stop_requested


async def test_ledger_has_all_attempts_under_one_number(gateway: Gateway) -> None:
    await ended(gateway, "FAILED")
    await resume(gateway)
    job = await gateway.until_state(State.RUNNING)
    with Session(gateway.store.engine) as session:
        rows = session.execute(select(UsageRow.job, UsageRow.attempt).order_by(UsageRow.attempt)).all()
    assert [tuple(row) for row in rows] == [(job.sequence, 1), (job.sequence, 2)]


async def test_restarts_are_counted_from_the_beginning(gateway: Gateway) -> None:
    metadata = {"max_restarts_on_loss": "0", "max_restarts_on_failure": "0"}
    job = await ended(gateway, "FAILED", metadata=metadata)
    assert job.failures == 1
    job = await resume(gateway)
    assert (job.failures, job.losses) == (0, 0)


async def test_resumed_job_waits_behind_those_that_wait(gateway: Gateway) -> None:
    await ended(gateway, "FAILED", entrypoint_num_cpus=4.0)
    await add(gateway, "runs", 4)
    await settled(gateway, {"runs"})
    await add(gateway, "waits", 4)
    await settled(gateway, {"runs"})
    await resume(gateway)
    await settled(gateway, {"runs"})
    view = gateway.reconciler.starter.view
    assert view
    assert [say.job for say in queue(view)] == ["waits", "mine"]
    assert NODE.total == {"CPU": 4.0}


async def test_open_or_successful_job_is_not_resumed(gateway: Gateway) -> None:
    await gateway.started()
    with pytest.raises(NotResumableError, match="Job mine is RUNNING, so there is nothing to resume"):
        await resume(gateway)
    await gateway.end()
    with pytest.raises(NotResumableError, match="Job mine has succeeded, so it is not resumed"):
        await resume(gateway)


async def test_log_of_resumed_job_grows_again(gateway: Gateway) -> None:
    await ended(gateway, "FAILED")
    await resume(gateway)
    await gateway.logs.reopen("mine", "The job was resumed.")
    following = asyncio.create_task(anext(gateway.logs.follow("mine", skip_lines=1)))
    await gateway.logs.note("mine", "line of the second attempt")
    async with asyncio.timeout(30):
        assert "line of the second attempt\n" in await following


async def test_package_of_job_that_may_be_resumed_is_kept(gateway: Gateway) -> None:
    # It fails, because the package was never uploaded.
    await gateway.submit(runtime_env={"working_dir": "gcs://_ray_pkg_0123456789abcdef.zip"})
    await gateway.until_state(State.FAILED)
    assert await gateway.store.packages() == {"_ray_pkg_0123456789abcdef.zip"}
    await gateway.store.delete("mine")
    assert await gateway.store.packages() == set()
