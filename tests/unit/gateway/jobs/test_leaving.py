"""A job that runs on what another team lends is asked to leave, and continues when there is room again."""

import json
from pathlib import Path

import pytest
from gateway_parts import Gateway, add, add_team, settled
from waiting import until

from mlplatform.settings.job import settings
from mlplatform_gateway.jobs.decisions import Decisions
from mlplatform_gateway.jobs.states import Outcome, State
from mlplatform_gateway.jobs.store import now
from mlplatform_gateway.queue.planner.queue import Preempt, Rules

GRACE_S = 30.0
WHY = "Job owed of team vision takes back 4 CPUs."


@pytest.fixture
def rules() -> Rules:
    return Rules(grace_s=GRACE_S)


@pytest.fixture
async def borrower(gateway: Gateway) -> None:
    """A job of one team that runs on the share of another."""
    await add_team(gateway, "audio")
    await add_team(gateway, "vision", share_cpus=4.0)
    await add(gateway, "borrower", 4, "audio", "otto")
    await settled(gateway, {"borrower"})


@pytest.fixture
async def alone(gateway: Gateway) -> None:
    """A job that runs before there are teams."""
    await add(gateway, "borrower", 4)
    await settled(gateway, {"borrower"})


async def ask(gateway: Gateway, seconds: float = GRACE_S, claimant: str = "owed", why: str = WHY) -> None:
    """Ask the job to leave within some seconds."""
    await Decisions(gateway.store.engine).preempt(Preempt("borrower", now().timestamp() + seconds, claimant, why))


def given(job_id: str) -> dict[str, object]:
    return json.loads((Path(settings().storage) / job_id / "notice").read_text())


@pytest.mark.usefixtures("borrower")
async def test_borrower_leaves_for_job_within_share_and_returns(gateway: Gateway) -> None:
    await add(gateway, "owed", 4, "vision", "alice")
    left = (await settled(gateway, {"owed"}))["borrower"]
    _, owed = await gateway.store.request_stop("owed")
    await gateway.reconciler.stop(owed)
    back = (await settled(gateway, {"borrower"}))["borrower"]
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


@pytest.mark.usefixtures("borrower")
async def test_room_belongs_to_claimant_while_borrower_leaves(gateway: Gateway) -> None:
    gateway.head.ignores_stop = True
    await add(gateway, "owed", 4, "vision", "alice")
    waits = await gateway.until_job(lambda job: job.claim is not None, "owed")
    leaves = (await gateway.store.get("borrower")).attempts[0]
    gateway.head.ignores_stop = False
    await settled(gateway, {"owed"})
    assert (await gateway.store.get("owed")).claim is None, "a job that runs keeps its claim"
    assert leaves.claimant == "owed"
    assert leaves.leave_by
    assert waits.claim == {"placement": {"ray-worker-0": {"CPU": 4.0}}, "deadline": leaves.leave_by.timestamp()}


@pytest.mark.usefixtures("borrower")
async def test_slow_starts_of_one_team_hold_up_no_other(gateway: Gateway) -> None:
    gateway.head.status = "PENDING"
    for number in range(6):  # more than may start at the same time
        await add(gateway, f"slow{number}", 0, "audio", "otto")
    await until(lambda: len(gateway.head.submitted) == 5)
    await add(gateway, "owed", 4, "vision", "alice")
    gateway.head.status = "RUNNING"
    await gateway.until_state(State.RUNNING, "owed")
    rows = await gateway.store.open_jobs()
    former = [each["status"] for name, each in gateway.head.jobs.items() if name.startswith("borrower")]
    assert former[:1] == ["STOPPED"], "a job starts while another has its room"
    await gateway.until_left("borrower")
    assert sum(row.state == State.WAITING for row in rows if row.id.startswith("slow")) == 2


async def test_notice_is_delivered_by_the_next_gateway(idle: Gateway) -> None:
    await add(idle, "borrower", 4)
    assert await idle.store.begin_attempt("borrower")
    await ask(idle)
    async with idle.at_work():
        assert (await idle.until_left("borrower")).attempts[0].reason == WHY
    assert given("borrower")["why"] == WHY


@pytest.mark.usefixtures("alone")
async def test_requested_stop_ends_job_that_leaves(gateway: Gateway) -> None:
    gateway.head.ignores_stop = True
    await ask(gateway)
    await gateway.store.request_stop("borrower")
    gateway.head.ignores_stop = False
    stopped = await gateway.until_job(lambda job: State(job.state).final, "borrower")
    assert (stopped.state, stopped.attempts[0].outcome) == (State.STOPPED, Outcome.STOPPED)


async def test_second_notice_changes_nothing(idle: Gateway) -> None:
    await add(idle, "borrower", 4)
    await idle.store.begin_attempt("borrower")
    await ask(idle)
    await ask(idle, GRACE_S + 100, "other", "Another job takes it back.")
    attempt = (await idle.store.get("borrower")).attempts[0]
    assert (attempt.leave_why, attempt.claimant) == (WHY, "owed")


@pytest.mark.parametrize(("team", "limit"), [(None, {}), ("vision", {}), (None, {"time_limit": "1h"})])
async def test_attempts_that_may_have_to_leave_get_time_to_save(
    team: str | None, limit: dict[str, str], gateway: Gateway
) -> None:
    if team:
        await add_team(gateway, team)
    await gateway.started(team=team, metadata=limit)
    (request,) = gateway.head.requests
    variables = request["runtime_env"]["env_vars"]
    expected = {"MLPLATFORM_GRACE_SECONDS": "30", "RAY_JOB_STOP_WAIT_TIME_S": "30"} if team or limit else {}
    assert {name: value for name, value in variables.items() if name in expected or "GRACE" in name} == expected


@pytest.mark.usefixtures("alone")
async def test_job_from_before_the_first_team_is_not_asked(gateway: Gateway) -> None:
    await add_team(gateway, "vision", share_cpus=4.0)
    await add(gateway, "owed", 4, "vision", "alice")
    rows = await settled(gateway, {"borrower"})
    assert rows["borrower"].attempts[0].leave_by is None
    assert rows["owed"].claim is None


@pytest.mark.usefixtures("borrower")
async def test_program_that_finishes_during_its_time_is_not_repeated(gateway: Gateway) -> None:
    (Path(settings().storage) / "borrower").mkdir(exist_ok=True)
    (Path(settings().storage) / "borrower/done").write_text("1")
    await add(gateway, "owed", 4, "vision", "alice")
    await settled(gateway, {"owed"})
    done = await gateway.store.get("borrower")
    assert (done.state, done.exit_code, len(done.attempts)) == (State.SUCCEEDED, 0, 1)


@pytest.mark.usefixtures("alone")
async def test_job_leaves_although_its_notice_cannot_be_written(gateway: Gateway, tmp_path: Path) -> None:
    in_the_way = tmp_path / "storage/borrower"
    in_the_way.write_text("a file where the folder belongs")
    await ask(gateway, 1)
    await until(lambda: all(known["status"] == "STOPPED" for known in gateway.head.jobs.values()))
    in_the_way.unlink()
    assert (await gateway.until_left("borrower")).attempts[0].outcome == Outcome.PREEMPTED


@pytest.mark.usefixtures("borrower")
async def test_attempt_that_left_ends_although_storage_rejects_reading(gateway: Gateway) -> None:
    (Path(settings().storage) / "borrower/done").mkdir(parents=True)  # a folder, which cannot be read as a file
    await add(gateway, "owed", 4, "vision", "alice")
    await settled(gateway, {"owed"})
    assert (await gateway.store.get("borrower")).attempts[0].outcome == Outcome.PREEMPTED


@pytest.mark.usefixtures("alone")
async def test_lost_attempt_stays_lost_after_notice(gateway: Gateway) -> None:
    gateway.head.ignores_stop = True
    await ask(gateway)
    gateway.head.dead["n"] = now()
    found = await gateway.until_job(lambda job: job.losses == 1, "borrower")
    assert (found.attempts[0].outcome, found.preemptions) == (Outcome.LOST, 0)
