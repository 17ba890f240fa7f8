"""Starting, watching and ending jobs: the gateway's parts with SQLite and folders, and a stand-in for the Ray head."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
import uvicorn
from gateway_parts import BOUND_S, Gateway, ray
from held import rows
from starlette.types import ASGIApp
from waiting import until
from websockets.asyncio.client import connect
from without_log_in import without_log_in

from mlplatform.errors import UnreachableError
from mlplatform.storage import fence
from mlplatform_gateway.errors import RefusedError
from mlplatform_gateway.jobs import api as jobs
from mlplatform_gateway.jobs import ending, starting
from mlplatform_gateway.jobs import loop as reconciler
from mlplatform_gateway.jobs.states import State
from mlplatform_gateway.jobs.submission import Submission
from mlplatform_gateway.logs import api as job_logs
from mlplatform_gateway.ray.proxy import ReverseProxy
from mlplatform_gateway.usage.ledger import milliseconds


async def test_job_starts_and_ends(gateway: Gateway) -> None:
    await gateway.started()
    await gateway.end()
    (ray_submission_id,) = gateway.head.submitted
    assert ray_submission_id.startswith("mine--1-")


@pytest.mark.parametrize(
    ("fields", "refusal", "message"),
    [
        ({}, RefusedError("Ray rejects the job: too large"), "too large"),
        ({"runtime_env": {"working_dir": "gcs://gone.zip"}}, None, "gcs://gone.zip of the job does not exist"),
    ],
    ids=["by Ray", "without its package"],
)
async def test_unstartable_job_fails_once_and_frees_capacity(
    gateway: Gateway, fields: dict[str, Any], refusal: Exception | None, message: str
) -> None:
    gateway.head.refusal = refusal
    await gateway.submit(**fields)
    assert message in (await gateway.until_state(State.FAILED)).message
    assert len(gateway.head.submitted) == (refusal is not None)


@pytest.mark.parametrize(
    ("bundles", "expected"),
    [
        ([{"CPU": 1.0, "GPU": 9.0}], "One worker asks for 1 CPU and 9 GPUs; no node has a GPU"),
        ([{"CPU": 2.0}] * 3, "The job asks for 3 workers with 2 CPUs each; all nodes together hold 2"),
        ([{"CPU": 1.0}, {"CPU": 1.0, "tpu": 1.0}], "One worker asks for 1 CPU and 1 tpu; no node has a tpu"),
    ],
    ids=["one", "all together", "one of several"],
)
async def test_infeasible_request_appears_in_message_and_log(
    gateway: Gateway, bundles: list[dict[str, float]], expected: str
) -> None:
    await gateway.started()
    (ray_submission_id,) = gateway.head.submitted
    gateway.head.jobs[ray_submission_id] = ray("RUNNING", job_id="02000000")
    gateway.head.wanted = bundles
    await gateway.until_job(lambda job: f"waits for a node that can run its workers. {expected}" in job.message)
    gateway.head.wanted = [{"CPU": 4.0}]  # feasible; only waits for its turn
    job = await gateway.until_job(lambda job: "Job is currently running." in job.message)
    assert job.state == State.RUNNING
    log = await gateway.logs.text("mine")
    assert log.count(expected) == 1
    assert "To end the job: mlplatform stop mine" in log


async def test_open_job_without_attempt_does_not_block_others(gateway: Gateway) -> None:
    broken = Submission.model_validate({"entrypoint": "true", "submission_id": "broken"}).job()
    broken.state = State.STARTING
    await gateway.store.add(broken)
    await gateway.started()
    await gateway.end()
    stopped, job = await gateway.store.request_stop("broken")
    assert (stopped, job.state) == (True, State.STOPPED)
    await gateway.reconciler.stop(job)


async def test_job_with_failing_step_does_not_block_others(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen = gateway.store.seen

    async def failing(job_id: str, *more: Any) -> None:
        if job_id == "broken":
            raise KeyError("what nobody has thought of")
        await seen(job_id, *more)

    monkeypatch.setattr(gateway.store, "seen", failing)
    await gateway.submit(submission_id="broken")
    await until(lambda: gateway.head.jobs)
    await gateway.started()
    assert (await gateway.store.get("broken")).state == State.STARTING
    (line,) = {record.getMessage() for record in caplog.records}
    assert line == "A step of job broken failed and will be retried."


async def test_unjudgeable_waiting_job_does_not_block_others(gateway: Gateway) -> None:
    odd = Submission.model_validate({"entrypoint": "true", "submission_id": "odd"}).job()
    odd.workers = {"unknown": 1}
    await gateway.store.add(odd)
    await gateway.started()


async def test_job_not_accepted_by_ray_can_be_stopped(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "_FORGOTTEN_SECONDS", 0.3)
    gateway.head.refusal = UnreachableError("Ray's head does not answer.")
    await gateway.submit()
    await gateway.until_state(State.STARTING)
    await gateway.store.request_stop("mine")
    await gateway.until_state(State.STOPPED)
    tried = len(gateway.head.submitted)
    gateway.head.refusal = None
    await asyncio.sleep(0.3)  # several steps; none of them may start it
    assert len(gateway.head.submitted) == tried


async def test_job_stored_but_not_started_by_ray_restarts(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "_STRANDED_SECONDS", 0.3)
    gateway.head.status, gateway.head.supervised = "PENDING", False
    await gateway.submit()
    await until(lambda: gateway.head.submitted)
    gateway.head.status = "RUNNING"
    await gateway.until_state(State.RUNNING)
    assert [ray_submission_id.split("--")[1][0] for ray_submission_id in gateway.head.submitted] == ["1", "2"]


async def test_job_installing_its_environment_is_not_restarted(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "_STRANDED_SECONDS", 0.1)
    gateway.head.status = "PENDING"
    await gateway.submit()
    await until(lambda: gateway.head.submitted)
    await asyncio.sleep(0.5)
    assert (await gateway.store.get("mine")).state == State.STARTING
    assert len(gateway.head.submitted) == 1


async def test_start_that_hangs_is_ended_when_stopped(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "_STOP_START_SECONDS", 0.2)
    monkeypatch.setattr(reconciler, "_STOP_AGAIN_SECONDS", 0.05)
    gateway.head.status, gateway.head.ignores_stop = "PENDING", True
    await gateway.submit()
    await until(lambda: gateway.head.jobs)
    await gateway.until_state(State.STARTING)
    _, job = await gateway.store.request_stop("mine")
    await gateway.reconciler.stop(job)
    await gateway.until_state(State.STOPPED)
    assert gateway.head.stopped == set(gateway.head.submitted)


async def test_start_that_takes_too_long_fails(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway.reconciler, "_hanging", ending.HangingStarts(0.3))
    gateway.head.status = "PENDING"
    await gateway.submit()
    message = (await gateway.until_state(State.FAILED)).message
    assert "did not start the job within 0.3 s" in message
    assert "JOB_START_SECONDS" in message


async def test_starts_that_hang_do_not_block_other_jobs(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "_PLACE_SECONDS", 0.3)
    gateway.head.status = "PENDING"
    for number in range(4):  # as many as may start at the same time
        await gateway.submit(submission_id=f"hangs{number}")
    await until(lambda: len(gateway.head.submitted) == 4)
    gateway.head.status = "RUNNING"
    await gateway.started()
    assert (await gateway.store.get("hangs0")).state == State.STARTING


async def test_lost_attempt_is_fenced_before_its_end_is_stored(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed: list[int | None] = []
    end_attempt = gateway.store.end_attempt

    async def noted(job_id: str, *more: Any) -> Any:
        allowed.append(fence.allowed(job_id))
        return await end_attempt(job_id, *more)

    monkeypatch.setattr(gateway.store, "end_attempt", noted)
    await gateway.started(metadata={"max_restarts_on_loss": "0"})
    await gateway.end("FAILED", error_type="JOB_SUPERVISOR_ACTOR_DIED")
    assert allowed == [2]


async def test_followed_log_ends_without_database_confirmation(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_attempt = gateway.store.end_attempt

    async def unanswered(*arguments: Any) -> None:
        await end_attempt(*arguments)
        raise UnreachableError("The gateway's database does not answer.")

    monkeypatch.setattr(gateway.store, "end_attempt", unanswered)
    await gateway.started()
    await gateway.logs.note("mine", "a line")
    (ray_submission_id,) = gateway.head.submitted
    gateway.head.jobs[ray_submission_id] = ray("SUCCEEDED")
    async with asyncio.timeout(BOUND_S):
        assert [part async for part in gateway.logs.follow("mine")] == ["a line\n"]


async def test_reused_job_id_starts_at_attempt_1(gateway: Gateway) -> None:
    """The job is deleted as soon as its end is visible, while the gateway is still processing the end."""
    await gateway.started(metadata={"max_restarts_on_loss": "0"})
    await gateway.logs.note("mine", "of the first")
    await gateway.end("FAILED", error_type="JOB_SUPERVISOR_ACTOR_DIED")
    transport = httpx.ASGITransport(api(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        assert (await client.delete("/api/jobs/mine")).json() == {"deleted": True}
    await gateway.started()
    assert await gateway.logs.text("mine") == ""
    assert fence.allowed("mine") is None
    assert (await gateway.store.get("mine")).attempts[-1].number == 1


async def test_idle_log_is_released_when_reader_disconnects(idle: Gateway) -> None:
    def followers() -> int:
        return sum(job.readers for job in idle.logs._jobs.values())

    await idle.submit()
    async with served(api(idle)) as address:
        async with connect(f"{address}/api/jobs/mine/logs/tail", proxy=None):
            await until(lambda: followers() == 1)
        await until(lambda: followers() == 0)


@pytest.mark.parametrize("end", [State.SUCCEEDED, State.FAILED], ids=["stored by Ray", "death of its node"])
async def test_attempt_is_held_until_its_end_in_ray(end: State, gateway: Gateway) -> None:
    """The end is before the attempt began, at which the ledger ends it."""
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    await gateway.started(metadata={"max_restarts_on_loss": "0"})
    if end == State.SUCCEEDED:
        gateway.head.jobs[gateway.head.submitted[0]] = ray("SUCCEEDED", end_time=milliseconds(long_ago))
    else:
        gateway.head.dead["n"] = long_ago
    await gateway.until_state(end)
    (row,) = rows(gateway.store)
    assert row.recorded is not None
    assert row.began == row.ended < row.recorded
    assert row.outcome == ("SUCCEEDED" if end == State.SUCCEEDED else "LOST")


@asynccontextmanager
async def served(app: ASGIApp) -> AsyncIterator[str]:
    config = uvicorn.Config(app, port=0, log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    yield f"ws://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    await serving


def api(gateway: Gateway) -> ASGIApp:
    proxy = ReverseProxy("http://127.0.0.1:1")
    ends = jobs.end_routes(gateway.services, gateway.reconciler, proxy)
    return without_log_in(ends, job_logs.routes(gateway.logs, proxy), jobs=gateway.store)


async def test_jobs_start_after_burst_was_accepted(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "_HOLD_SECONDS", 60.0)
    await gateway.started(submission_id="first")
    with gateway.reconciler.bursts.submission():
        await gateway.submit()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(gateway.until_state(State.RUNNING), 1)
    await gateway.until_state(State.RUNNING)


async def test_endless_submissions_do_not_prevent_starts(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "_HOLD_SECONDS", 0.1)
    with gateway.reconciler.bursts.submission():
        await gateway.started()
