"""Schedules: a job for each time, one for all that were missed, none twice, and none after the owner was removed."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest
from gateway_parts import Gateway, add_alice
from sqlalchemy import select, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from mlplatform.errors import UnreachableError
from mlplatform_gateway.audit.store import PLATFORM
from mlplatform_gateway.errors import NotResumableError, QueueFullError
from mlplatform_gateway.jobs import admission, schedules
from mlplatform_gateway.jobs.admission import Admission
from mlplatform_gateway.jobs.overview import JobOverview
from mlplatform_gateway.jobs.resuming import Resumption
from mlplatform_gateway.jobs.schedules import Schedules
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.jobs.states import State
from mlplatform_gateway.monitoring.disks import Disks
from mlplatform_gateway.people.store import People

HOURLY = {"mlplatform.schedule": "0 * * * *", "mlplatform.timezone": "Europe/Berlin"}


def started(gateway: Gateway) -> Schedules:
    """The background work, as each start of the gateway makes it."""
    return Schedules(gateway.services, Admission(gateway.services, Disks({}, 0)), gateway.reconciler.wake)


def passed(gateway: Gateway, hours: float) -> datetime:
    """Let the next time of schedule `mine` have been some hours ago; return it."""
    due = datetime.now(UTC) - timedelta(hours=hours)
    with Session(gateway.store.engine) as session, session.begin():
        session.execute(update(JobRow).where(JobRow.id == "mine").values(due=due))
    return due


def submitted(gateway: Gateway) -> list[JobRow]:
    """The jobs of schedule `mine`."""
    with Session(gateway.store.engine) as session:
        return list(session.scalars(select(JobRow).where(JobRow.origin == "mine").order_by(JobRow.sequence)))


async def test_schedule_itself_never_runs(idle: Gateway) -> None:
    await idle.submit(metadata=HOURLY)
    schedule = await idle.store.get("mine")
    assert (schedule.state, State(schedule.state).of_ray) == (State.SCHEDULED, "PENDING")
    assert schedule.due is not None
    assert timedelta() < schedule.due - datetime.now(UTC) <= timedelta(hours=1)
    assert schedule.message.startswith("The next job is submitted at 20")
    assert await idle.store.open_jobs() == [], "the control loop would poll Ray for it"
    assert await idle.store.begin_attempt("mine") is None
    await started(idle).look()
    assert submitted(idle) == []


async def test_job_is_submitted_at_its_time(idle: Gateway) -> None:
    await idle.submit(metadata={**HOURLY, "time_limit": "2h"}, entrypoint_num_cpus=2.0)
    due = passed(idle, 0.001)
    await started(idle).look()
    (job,) = submitted(idle)
    assert (job.state, job.due, job.late, job.limit_s) == (State.WAITING, due, False, 7200)
    assert job.entrypoint_request == {"entrypoint_num_cpus": 2.0}
    assert job.job_metadata == {"time_limit": "2h"}
    schedule = await idle.store.get("mine")
    assert schedule.due is not None
    assert schedule.due > datetime.now(UTC)
    assert schedule.message.endswith(f" The last one is {job.id}.")
    assert [row.id for row in await JobOverview(idle.store.engine).later()] == ["mine"]


async def test_missed_times_become_one_late_job(idle: Gateway) -> None:
    await idle.submit(metadata=HOURLY)
    due = passed(idle, 50)
    work = started(idle)
    await work.look()
    await work.look()
    (job,) = submitted(idle)
    assert (job.due, job.late) == (due, True)
    assert f"The last one is {job.id}, late for 20" in (await idle.store.get("mine")).message


async def test_time_is_skipped_while_last_job_waits(idle: Gateway) -> None:
    await idle.submit(metadata=HOURLY)
    work = started(idle)
    for _ in range(2):
        passed(idle, 0.5)
        await work.look()
    (first,) = submitted(idle)
    schedule = await idle.store.get("mine")
    assert schedule.due is not None
    assert schedule.due > datetime.now(UTC)
    assert " The one for 20" in schedule.message
    assert schedule.message.endswith(f" was skipped: {first.id} still waits to start.")
    await idle.store.begin_attempt(first.id)
    passed(idle, 0.5)
    await work.look()
    assert len(submitted(idle)) == 2


async def test_two_gateways_submit_a_time_once(idle: Gateway) -> None:
    await idle.submit(metadata=HOURLY)
    passed(idle, 2)
    one, other = started(idle), started(idle)
    (seen,) = await other._passed()
    await one.look()
    await other._submit(seen)
    assert len(submitted(idle)) == 1


@pytest.mark.parametrize("step", ["plan_next", "record"])
async def test_lost_connection_neither_loses_nor_doubles(
    step: str, idle: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await idle.submit(metadata=HOURLY)
    due = passed(idle, 2)

    def lost(*_: object, **__: object) -> None:
        raise OperationalError("", {}, Exception("the connection is lost"))

    with monkeypatch.context() as patched:
        patched.setattr(schedules, step, lost)
        with pytest.raises(UnreachableError):
            await started(idle).look()
    assert submitted(idle) == []
    assert (await idle.store.get("mine")).due == due
    await started(idle).look()
    assert len(submitted(idle)) == 1


async def test_database_has_one_job_per_time(idle: Gateway) -> None:
    await idle.submit(metadata=HOURLY)
    passed(idle, 2)
    await started(idle).look()
    (first,) = submitted(idle)
    await idle.store.begin_attempt(first.id)
    with Session(idle.store.engine) as session, session.begin():
        session.execute(update(JobRow).where(JobRow.id == "mine").values(due=first.due))
    await started(idle).look()
    assert len(submitted(idle)) == 1


async def test_stopped_schedule_submits_nothing_until_resumed(idle: Gateway) -> None:
    await idle.submit(metadata=HOURLY)
    passed(idle, 2)
    await idle.store.request_stop("mine")
    await started(idle).look()
    assert submitted(idle) == []
    resumed = await Resumption(idle.store.engine).resume("mine", "It was resumed.")
    assert resumed.state == State.SCHEDULED
    assert resumed.due is not None
    assert resumed.due > datetime.now(UTC)
    with pytest.raises(NotResumableError):
        await Resumption(idle.store.engine).resume("mine", "It was resumed.")


async def remove_alice(people: People) -> None:
    await people.remove("alice", PLATFORM)


async def remove_from_team(people: People) -> None:
    await people.add("alice", PLATFORM, administrator=True)
    await people.remove("alice", PLATFORM, "vision")


async def remove_team(people: People) -> None:
    await people.remove_team("vision", PLATFORM, 0, force=True)


@pytest.mark.parametrize(
    ("remove", "why"),
    [
        (remove_alice, "its owner alice was removed"),
        (remove_from_team, "its owner alice was removed"),
        (remove_team, "team vision was removed"),
    ],
)
async def test_schedule_pauses_with_its_owner(
    remove: Callable[[People], Awaitable[None]], why: str, idle: Gateway
) -> None:
    await add_alice(idle)
    await idle.submit("alice", "vision", metadata=HOURLY)
    await idle.submit("bob", "audio", submission_id="other", metadata=HOURLY)
    passed(idle, 2)
    people = People(idle.store.engine)
    await remove(people)
    await started(idle).look()
    schedule = await idle.store.get("mine")
    assert (schedule.state, schedule.due, schedule.message) == (State.SCHEDULED, None, f"Paused, because {why}.")
    assert submitted(idle) == []
    assert (await idle.store.get("other")).due is not None
    assert (await Resumption(idle.store.engine).resume("mine", "It was resumed.")).due is not None


async def test_owner_needs_the_right_at_each_time(idle: Gateway) -> None:
    await add_alice(idle)
    people, work = People(idle.store.engine), started(idle)
    await people.add("alice", PLATFORM, "vision", lead=True)
    await idle.submit("alice", "vision", metadata={**HOURLY, "class": "urgent"})
    passed(idle, 2)
    await people.add("alice", PLATFORM, "vision")
    await work.look()
    assert "later: Only leads of team vision and administrators" in (await idle.store.get("mine")).message
    await people.remove("alice", PLATFORM)
    for _ in range(2):  # as if its submission had been stored after the removal
        passed(idle, 2)
        await work.look()
        assert "is submitted later: Its owner alice was removed." in (await idle.store.get("mine")).message
        await people.add("alice", PLATFORM, "vision", lead=True)
    await idle.store.request_stop("mine")
    await Resumption(idle.store.engine).resume("mine", "It was resumed.")
    assert submitted(idle) == []
    passed(idle, 0)
    await work.look()
    assert len(submitted(idle)) == 1, "the present alice has resumed it"


async def test_rejected_job_is_submitted_once_it_is_accepted(idle: Gateway) -> None:
    await add_alice(idle)
    people = People(idle.store.engine)
    await people.set_team("vision", {"caps": {"person": {"waiting": 0}}}, PLATFORM)
    await idle.submit("alice", "vision", metadata=HOURLY)
    passed(idle, 2)
    await started(idle).look()
    assert submitted(idle) == []
    assert "is submitted later: alice has 0 waiting jobs" in (await idle.store.get("mine")).message
    await people.set_team("vision", {"caps": {}}, PLATFORM)
    await started(idle).look()
    assert [job.late for job in submitted(idle)] == [True]


async def test_person_has_a_limited_number_of_schedules(idle: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_MOST_SCHEDULES", 2)
    check = Admission(idle.services, Disks({}, 0))
    for job_id in ("mine", "second"):
        await check.check(await _schedule(idle, job_id, "alice"))
    with pytest.raises(QueueFullError, match="alice has 2 schedules, the most that are allowed"):
        await check.check(await _schedule(idle, "third", "alice"))
    await check.check(await _schedule(idle, "fourth", "bob"))


async def _schedule(gateway: Gateway, job_id: str, person: str) -> JobRow:
    await gateway.submit(person, submission_id=job_id, metadata=HOURLY)
    return await gateway.store.get(job_id)


async def test_package_of_schedule_is_kept(idle: Gateway) -> None:
    await idle.submit(metadata=HOURLY, runtime_env={"working_dir": "gcs://_ray_pkg_0123456789abcdef.zip"})
    assert await idle.store.packages() == {"_ray_pkg_0123456789abcdef.zip"}


async def test_due_job_runs(gateway: Gateway) -> None:
    await gateway.submit(metadata=HOURLY)
    passed(gateway, 2)
    await started(gateway).look()
    (job,) = submitted(gateway)
    await gateway.until_state(State.RUNNING, job.id)
