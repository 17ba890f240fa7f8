"""Starting, watching and ending jobs: the gateway's parts with SQLite and folders, and a stand-in for the Ray head."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from gateway_parts import BOUND_S, Gateway, is_true, ray
from starlette.types import ASGIApp
from websockets.asyncio.client import connect
from without_log_in import without_log_in

from mlplatform.errors import UnreachableError
from mlplatform.gateway.control import hanging, reconciler, starting
from mlplatform.gateway.errors import RefusedError
from mlplatform.gateway.http.ends import of_ends
from mlplatform.gateway.http.job_logs import of_tails
from mlplatform.gateway.http.proxy import ReverseProxy
from mlplatform.gateway.jobs.states import State
from mlplatform.gateway.jobs.submission import Submission
from mlplatform.storage import fence


def test_job_starts_and_ends(gateway: Gateway) -> None:
    async def scenario() -> str:
        async with gateway.at_work():
            await gateway.submit()
            await gateway.until_state(State.RUNNING)
            (ray_submission_id,) = gateway.head.submitted
            gateway.head.jobs[ray_submission_id] = ray("SUCCEEDED")
            await gateway.until_state(State.SUCCEEDED)
            return ray_submission_id

    assert asyncio.run(scenario()).startswith("mine--1-")


@pytest.mark.parametrize(
    ("fields", "refusal", "message"),
    [
        ({}, RefusedError("Ray rejects the job: too large"), "too large"),
        ({"runtime_env": {"working_dir": "gcs://gone.zip"}}, None, "gcs://gone.zip of the job does not exist"),
    ],
    ids=["by Ray", "without its package"],
)
def test_unstartable_job_fails_once_and_frees_capacity(
    gateway: Gateway, fields: dict[str, Any], refusal: Exception | None, message: str
) -> None:
    async def scenario() -> str:
        gateway.head.refusal = refusal
        async with gateway.at_work():
            await gateway.submit(**fields)
            await gateway.until_state(State.FAILED)
        return (await gateway.store.get("mine")).message

    assert message in asyncio.run(scenario())
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
def test_infeasible_request_appears_in_message_and_log(
    gateway: Gateway, bundles: list[dict[str, float]], expected: str
) -> None:
    async def message_has(text: str) -> bool:
        return text in (await gateway.store.get("mine")).message

    async def scenario() -> str:
        async with gateway.at_work():
            await gateway.submit()
            await gateway.until_state(State.RUNNING)
            (ray_submission_id,) = gateway.head.submitted
            gateway.head.jobs[ray_submission_id] = ray("RUNNING", job_id="02000000")
            gateway.head.wanted = bundles
            await gateway.until(lambda: message_has(f"waits for a node that can run its workers. {expected}"))
            gateway.head.wanted = [{"CPU": 4.0}]  # feasible; only waits for its turn
            await gateway.until(lambda: message_has("Job is currently running."))
            assert await gateway.state() == State.RUNNING
            return await gateway.logs.text("mine")

    log = asyncio.run(scenario())
    assert log.count(expected) == 1
    assert "To end the job: mlplatform stop mine" in log


def test_open_job_without_attempt_does_not_block_others(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with gateway.at_work():
            broken = Submission.model_validate({"entrypoint": "true", "submission_id": "broken"}).job()
            broken.state = State.STARTING
            await gateway.store.add(broken)
            await gateway.submit()
            await gateway.until_state(State.RUNNING)
            (ray_submission_id,) = gateway.head.submitted
            gateway.head.jobs[ray_submission_id] = ray("SUCCEEDED")
            await gateway.until_state(State.SUCCEEDED)
            stopped, job = await gateway.store.request_stop("broken")
            assert (stopped, job.state) == (True, State.STOPPED)
            await gateway.reconciler.stop(job)

    asyncio.run(scenario())
    (line,) = {record.getMessage() for record in caplog.records}
    assert (
        line == "Job broken is STARTING without an attempt; end it with `mlplatform stop broken` and submit it again."
    )


def test_job_with_failing_step_does_not_block_others(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen = gateway.store.seen

    async def failing(job_id: str, *more: Any) -> None:
        if job_id == "broken":
            raise KeyError("what nobody has thought of")
        await seen(job_id, *more)

    monkeypatch.setattr(gateway.store, "seen", failing)

    async def scenario() -> None:
        async with gateway.at_work():
            await gateway.submit(submission_id="broken")
            await gateway.until(lambda: is_true(gateway.head.jobs))
            await gateway.submit()
            await gateway.until_state(State.RUNNING)
            assert (await gateway.store.get("broken")).state == State.STARTING

    asyncio.run(scenario())
    (line,) = {record.getMessage() for record in caplog.records}
    assert line == "A step of job broken failed and will be retried."


def test_unjudgeable_waiting_job_does_not_block_others(gateway: Gateway) -> None:
    async def scenario() -> None:
        async with gateway.at_work():
            odd = Submission.model_validate({"entrypoint": "true", "submission_id": "odd"}).job()
            odd.workers = {"unknown": 1}
            await gateway.store.add(odd)
            await gateway.submit()
            await gateway.until_state(State.RUNNING)

    asyncio.run(scenario())


def test_job_not_accepted_by_ray_can_be_stopped(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "_FORGOTTEN_SECONDS", 0.3)

    async def scenario() -> None:
        gateway.head.refusal = UnreachableError("Ray's head does not answer.")
        async with gateway.at_work():
            await gateway.submit()
            await gateway.until_state(State.STARTING)
            await gateway.store.request_stop("mine")
            await gateway.until_state(State.STOPPED)
            tried = len(gateway.head.submitted)
            gateway.head.refusal = None
            await asyncio.sleep(0.3)  # several steps; none of them may start it
            assert len(gateway.head.submitted) == tried

    asyncio.run(scenario())


def test_job_stored_but_not_started_by_ray_restarts(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hanging, "_STRANDED_SECONDS", 0.3)

    async def scenario() -> None:
        gateway.head.status, gateway.head.supervised = "PENDING", False
        async with gateway.at_work():
            await gateway.submit()
            await gateway.until(lambda: is_true(gateway.head.submitted))
            gateway.head.status = "RUNNING"
            await gateway.until_state(State.RUNNING)
        assert [ray_submission_id.split("--")[1][0] for ray_submission_id in gateway.head.submitted] == ["1", "2"]

    asyncio.run(scenario())


def test_job_installing_its_environment_is_not_restarted(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hanging, "_STRANDED_SECONDS", 0.1)

    async def scenario() -> None:
        gateway.head.status = "PENDING"
        async with gateway.at_work():
            await gateway.submit()
            await gateway.until(lambda: is_true(gateway.head.submitted))
            await asyncio.sleep(0.5)
            assert await gateway.state() == State.STARTING
        assert len(gateway.head.submitted) == 1

    asyncio.run(scenario())


def test_start_that_hangs_is_ended_when_stopped(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hanging, "_STOP_START_SECONDS", 0.2)
    monkeypatch.setattr(reconciler, "_STOP_AGAIN_SECONDS", 0.05)
    stops: list[str] = []

    async def ignored(ray_submission_id: str) -> None:
        stops.append(ray_submission_id)

    async def scenario() -> None:
        gateway.head.status = "PENDING"
        monkeypatch.setattr(gateway.head, "stop", ignored)
        async with gateway.at_work():
            await gateway.submit()
            await gateway.until(lambda: is_true(gateway.head.jobs))
            await gateway.until_state(State.STARTING)
            _, job = await gateway.store.request_stop("mine")
            await gateway.reconciler.stop(job)
            await gateway.until_state(State.STOPPED)
        assert set(stops) == set(gateway.head.submitted)

    asyncio.run(scenario())


def test_start_that_takes_too_long_fails(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway.reconciler, "_hanging", hanging.HangingStarts(0.3))

    async def scenario() -> str:
        gateway.head.status = "PENDING"
        async with gateway.at_work():
            await gateway.submit()
            await gateway.until_state(State.FAILED)
            return (await gateway.store.get("mine")).message

    message = asyncio.run(scenario())
    assert "did not start the job within 0.3 s" in message
    assert "JOB_START_SECONDS" in message


def test_starts_that_hang_do_not_block_other_jobs(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "_PLACE_SECONDS", 0.3)

    async def scenario() -> None:
        gateway.head.status = "PENDING"
        async with gateway.at_work():
            for number in range(4):  # as many as may start at the same time
                await gateway.submit(submission_id=f"hangs{number}")
            await gateway.until(lambda: is_true(len(gateway.head.submitted) == 4))
            gateway.head.status = "RUNNING"
            await gateway.submit()
            await gateway.until_state(State.RUNNING)
            assert (await gateway.store.get("hangs0")).state == State.STARTING

    asyncio.run(scenario())


def test_lost_attempt_is_fenced_before_its_end_is_stored(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed: list[int | None] = []
    end_attempt = gateway.store.end_attempt

    async def noted(job_id: str, *more: Any) -> Any:
        allowed.append(fence.allowed(job_id))
        return await end_attempt(job_id, *more)

    monkeypatch.setattr(gateway.store, "end_attempt", noted)

    async def scenario() -> None:
        async with gateway.at_work():
            await gateway.submit(metadata={"max_restarts_on_loss": "0"})
            await gateway.until_state(State.RUNNING)
            (ray_submission_id,) = gateway.head.submitted
            gateway.head.jobs[ray_submission_id] = ray("FAILED", error_type="JOB_SUPERVISOR_ACTOR_DIED")
            await gateway.until_state(State.FAILED)

    asyncio.run(scenario())
    assert allowed == [2]


def test_followed_log_ends_without_database_confirmation(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    end_attempt = gateway.store.end_attempt

    async def unanswered(*arguments: Any) -> None:
        await end_attempt(*arguments)
        raise UnreachableError("The gateway's database does not answer.")

    monkeypatch.setattr(gateway.store, "end_attempt", unanswered)

    async def scenario() -> None:
        async with gateway.at_work():
            await gateway.submit()
            await gateway.until_state(State.RUNNING)
            await gateway.logs.note("mine", "a line")
            (ray_submission_id,) = gateway.head.submitted
            gateway.head.jobs[ray_submission_id] = ray("SUCCEEDED")
            async with asyncio.timeout(BOUND_S):
                assert [part async for part in gateway.logs.follow("mine")] == ["a line\n"]

    asyncio.run(scenario())


def test_reused_job_id_starts_at_attempt_1(gateway: Gateway) -> None:
    """The job is deleted as soon as its end is visible, while the gateway is still processing the end."""

    async def scenario() -> None:
        async with gateway.at_work():
            await gateway.submit(metadata={"max_restarts_on_loss": "0"})
            await gateway.until_state(State.RUNNING)
            await gateway.logs.note("mine", "of the first")
            gateway.head.jobs[gateway.head.submitted[0]] = ray("FAILED", error_type="JOB_SUPERVISOR_ACTOR_DIED")
            await gateway.until_state(State.FAILED)
            transport = httpx.ASGITransport(api(gateway))
            async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
                assert (await client.delete("/api/jobs/mine")).json() == {"deleted": True}
            await gateway.submit()
            await gateway.until_state(State.RUNNING)
            assert await gateway.logs.text("mine") == ""
            assert fence.allowed("mine") is None
            assert (await gateway.store.get("mine")).attempts[-1].number == 1

    asyncio.run(scenario())


def test_idle_log_is_released_when_reader_disconnects(gateway: Gateway) -> None:
    async def followers(count: int) -> bool:
        return sum(job.readers for job in gateway.logs._jobs.values()) == count

    async def scenario() -> None:
        await gateway.submit()
        async with served(api(gateway)) as address:
            async with connect(f"{address}/api/jobs/mine/logs/tail", proxy=None):
                await gateway.until(lambda: followers(1))
            await gateway.until(lambda: followers(0))

    asyncio.run(scenario())


@asynccontextmanager
async def served(app: ASGIApp) -> AsyncIterator[str]:
    config = uvicorn.Config(app, port=0, log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    async with asyncio.timeout(BOUND_S):
        while not server.started:
            await asyncio.sleep(0.02)
    yield f"ws://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    await serving


def api(gateway: Gateway) -> ASGIApp:
    made_up: Any = gateway.head
    proxy = ReverseProxy("http://127.0.0.1:1")
    ends = of_ends(gateway.store, gateway.reconciler, gateway.logs, made_up, proxy)
    return without_log_in(ends, of_tails(gateway.logs, made_up, proxy), jobs=gateway.store)
