"""A job that runs on what another team lends is asked to leave, and continues when there is room again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from gateway_parts import Gateway
from queued import add, add_team, settled

from mlplatform.gateway.jobs.notices import Notices, claim_of
from mlplatform.gateway.jobs.schema import JobRow
from mlplatform.gateway.jobs.states import Outcome, State
from mlplatform.gateway.jobs.store import now
from mlplatform.scheduling.queue import Preempt, Rules
from mlplatform.settings.job import settings

GRACE_S = 30.0
WHY = "Job owed of team vision takes back 4 CPUs."


@pytest.fixture
def rules() -> Rules:
    return Rules(grace_s=GRACE_S)


async def borrow(gateway: Gateway) -> None:
    """Let a job of one team run on the share of another."""
    await add_team(gateway, "audio")
    await add_team(gateway, "vision", share_cpus=4.0)
    await add(gateway, "borrower", 4, "audio", "otto")


async def job(gateway: Gateway, job_id: str) -> JobRow:
    return await gateway.store.get(job_id)


def given(job_id: str) -> dict[str, object]:
    notice: dict[str, object] = json.loads((Path(settings().storage) / job_id / "notice").read_text())
    return notice


def test_borrower_leaves_for_job_within_share_and_returns(gateway: Gateway) -> None:
    async def scenario() -> tuple[JobRow, JobRow]:
        await borrow(gateway)
        async with gateway.at_work():
            await settled(gateway, {"borrower"})
            await add(gateway, "owed", 4, "vision", "alice")
            left = (await settled(gateway, {"owed"}))["borrower"]
            _, owed = await gateway.store.request_stop("owed")
            await gateway.reconciler.stop(owed)
            return left, (await settled(gateway, {"borrower"}))["borrower"]

    left, back = asyncio.run(scenario())
    first = left.attempts[0]
    assert first.outcome == Outcome.PREEMPTED
    assert first.reason == first.leave_why
    assert "owed" in str(first.reason)
    assert (left.preemptions, left.losses, left.failures) == (1, 0, 0)
    notice = given("borrower")
    assert notice["attempt"] == 1
    assert notice["why"] == first.leave_why
    assert 0 < float(str(notice["deadline"])) - now().timestamp() <= GRACE_S
    assert [attempt.outcome for attempt in back.attempts] == [Outcome.PREEMPTED, None]


def test_room_belongs_to_claimant_while_borrower_leaves(gateway: Gateway) -> None:
    async def scenario() -> JobRow:
        await borrow(gateway)
        async with gateway.at_work():
            await settled(gateway, {"borrower"})
            gateway.head.ignores_stop = True
            await add(gateway, "owed", 4, "vision", "alice")

            async def claimed() -> bool:
                return claim_of(await job(gateway, "owed")) is not None

            await gateway.until(claimed)
            waits = await job(gateway, "owed")
            gateway.head.ignores_stop = False
            await settled(gateway, {"owed"})
            assert (await job(gateway, "owed")).claim is None, "a job that runs keeps its claim"
        return waits

    claim = claim_of(asyncio.run(scenario()))
    assert claim
    assert claim.victims == {"borrower"}
    assert claim.placement == {"ray-worker-0": {"CPU": 4.0}}


def test_slow_starts_of_one_team_hold_up_no_other(gateway: Gateway) -> None:
    async def scenario() -> None:
        await borrow(gateway)
        async with gateway.at_work():
            await settled(gateway, {"borrower"})
            gateway.head.status = "PENDING"
            for number in range(6):  # more than may start at the same time
                await add(gateway, f"slow{number}", 0, "audio", "otto")
            await gateway.until(lambda: are_submitted(gateway, 5))
            await add(gateway, "owed", 4, "vision", "alice")
            gateway.head.status = "RUNNING"
            rows = await settled_beside(gateway, "owed")
            former = [each["status"] for name, each in gateway.head.jobs.items() if name.startswith("borrower")]
            assert former[:1] == ["STOPPED"], "a job starts while another has its room"

            async def left() -> bool:
                return (await job(gateway, "borrower")).preemptions == 1

            await gateway.until(left)
        assert sum(row.state == State.WAITING for row in rows.values() if row.id.startswith("slow")) == 2

    asyncio.run(scenario())


async def are_submitted(gateway: Gateway, count: int) -> bool:
    return len(gateway.head.submitted) == count


async def settled_beside(gateway: Gateway, job_id: str) -> dict[str, JobRow]:
    """Wait until a job runs; return all by id."""

    async def runs() -> bool:
        return (await job(gateway, job_id)).state == State.RUNNING

    await gateway.until(runs)
    return {row.id: row for row in await gateway.store.open_jobs()}


def test_notice_is_delivered_by_the_next_gateway(gateway: Gateway) -> None:
    async def scenario() -> JobRow:
        await add(gateway, "borrower", 4)
        assert await gateway.store.begin_attempt("borrower")
        await Notices(gateway.store.engine).preempt(Preempt("borrower", now().timestamp() + GRACE_S, "owed", WHY))
        async with gateway.at_work():

            async def left() -> bool:
                return (await job(gateway, "borrower")).preemptions == 1

            await gateway.until(left)
        return await job(gateway, "borrower")

    assert asyncio.run(scenario()).attempts[0].reason == WHY
    assert given("borrower")["why"] == WHY


def test_requested_stop_ends_job_that_leaves(gateway: Gateway) -> None:
    async def scenario() -> JobRow:
        await add(gateway, "borrower", 4)
        async with gateway.at_work():
            await settled(gateway, {"borrower"})
            gateway.head.ignores_stop = True
            await Notices(gateway.store.engine).preempt(Preempt("borrower", now().timestamp() + GRACE_S, "owed", WHY))
            await gateway.store.request_stop("borrower")
            gateway.head.ignores_stop = False

            async def ended() -> bool:
                return State((await job(gateway, "borrower")).state).final

            await gateway.until(ended)
        return await job(gateway, "borrower")

    stopped = asyncio.run(scenario())
    assert (stopped.state, stopped.attempts[0].outcome) == (State.STOPPED, Outcome.STOPPED)


def test_second_notice_changes_nothing(gateway: Gateway) -> None:
    async def scenario() -> JobRow:
        await add(gateway, "borrower", 4)
        await gateway.store.begin_attempt("borrower")
        notices, deadline = Notices(gateway.store.engine), now().timestamp() + GRACE_S
        await notices.preempt(Preempt("borrower", deadline, "owed", WHY))
        await notices.preempt(Preempt("borrower", deadline + 100, "other", "Another job takes it back."))
        return await job(gateway, "borrower")

    attempt = asyncio.run(scenario()).attempts[0]
    assert (attempt.leave_why, attempt.claimant) == (WHY, "owed")


@pytest.mark.parametrize("team", [None, "vision"])
def test_attempts_get_time_to_save_where_teams_lend(team: str | None, gateway: Gateway) -> None:
    async def scenario() -> None:
        if team:
            await add_team(gateway, team)
        await add(gateway, "mine", 1, team)
        async with gateway.at_work():
            await settled(gateway, {"mine"})

    asyncio.run(scenario())
    (request,) = gateway.head.requests
    variables = request["runtime_env"]["env_vars"]
    expected = {"MLPLATFORM_GRACE_SECONDS": "30", "RAY_JOB_STOP_WAIT_TIME_S": "30"} if team else {}
    assert {name: value for name, value in variables.items() if name in expected or "GRACE" in name} == expected


def test_job_from_before_the_first_team_is_not_asked(gateway: Gateway) -> None:
    async def scenario() -> dict[str, JobRow]:
        await add(gateway, "earlier", 4)
        async with gateway.at_work():
            await settled(gateway, {"earlier"})
            await add_team(gateway, "vision", share_cpus=4.0)
            await add(gateway, "owed", 4, "vision", "alice")
            return await settled(gateway, {"earlier"})

    rows = asyncio.run(scenario())
    assert rows["earlier"].attempts[0].leave_by is None
    assert rows["owed"].claim is None


def test_program_that_finishes_during_its_time_is_not_repeated(gateway: Gateway) -> None:
    async def scenario() -> JobRow:
        await borrow(gateway)
        async with gateway.at_work():
            await settled(gateway, {"borrower"})
            (Path(settings().storage) / "borrower").mkdir(exist_ok=True)
            (Path(settings().storage) / "borrower/done").write_text("1")
            await add(gateway, "owed", 4, "vision", "alice")
            await settled(gateway, {"owed"})
        return await job(gateway, "borrower")

    done = asyncio.run(scenario())
    assert (done.state, done.exit_code, len(done.attempts)) == (State.SUCCEEDED, 0, 1)


def test_job_leaves_although_its_notice_cannot_be_written(gateway: Gateway, tmp_path: Path) -> None:
    async def scenario() -> JobRow:
        await add(gateway, "borrower", 4)
        async with gateway.at_work():
            await settled(gateway, {"borrower"})
            in_the_way = tmp_path / "storage/borrower"
            in_the_way.write_text("a file where the folder belongs")
            await Notices(gateway.store.engine).preempt(Preempt("borrower", now().timestamp() + 1, "owed", WHY))

            async def stopped() -> bool:
                return all(known["status"] == "STOPPED" for known in gateway.head.jobs.values())

            async def left() -> bool:
                return (await job(gateway, "borrower")).preemptions == 1

            await gateway.until(stopped)
            in_the_way.unlink()
            await gateway.until(left)
        return await job(gateway, "borrower")

    assert asyncio.run(scenario()).attempts[0].outcome == Outcome.PREEMPTED


def test_attempt_that_left_ends_although_storage_rejects_reading(gateway: Gateway) -> None:
    async def scenario() -> JobRow:
        await borrow(gateway)
        async with gateway.at_work():
            await settled(gateway, {"borrower"})
            (Path(settings().storage) / "borrower/done").mkdir(parents=True)  # a folder, which cannot be read as a file
            await add(gateway, "owed", 4, "vision", "alice")
            await settled(gateway, {"owed"})
        return await job(gateway, "borrower")

    assert asyncio.run(scenario()).attempts[0].outcome == Outcome.PREEMPTED


def test_lost_attempt_stays_lost_after_notice(gateway: Gateway) -> None:
    async def scenario() -> JobRow:
        await add(gateway, "borrower", 4)
        async with gateway.at_work():
            await settled(gateway, {"borrower"})
            gateway.head.ignores_stop = True
            await Notices(gateway.store.engine).preempt(Preempt("borrower", now().timestamp() + GRACE_S, "owed", WHY))
            gateway.head.dead["n"] = now()

            async def lost() -> bool:
                return (await job(gateway, "borrower")).losses == 1

            await gateway.until(lost)
        return await job(gateway, "borrower")

    found = asyncio.run(scenario())
    assert (found.attempts[0].outcome, found.preemptions) == (Outcome.LOST, 0)
