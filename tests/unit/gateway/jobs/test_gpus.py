"""Jobs whose GPUs do nothing, and jobs that use more memory of a GPU than their part, with measured values as given."""

from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
from gateway_parts import NODE, Gateway, add_team, settled
from sqlalchemy import select, update
from sqlalchemy.orm import Session
from waiting import until

from mlplatform_gateway.jobs import watcher
from mlplatform_gateway.jobs.schema import AttemptRow
from mlplatform_gateway.jobs.states import Outcome, State
from mlplatform_gateway.jobs.store import now
from mlplatform_gateway.queue.planner.queue import Rules
from mlplatform_gateway.ray.head import ClusterSnapshot
from mlplatform_gateway.ray.utilisation import GpuUse, Utilisation
from mlplatform_gateway.usage.gpus import are_idle, computing_for, held_by, memory_excess
from mlplatform_gateway.usage.schema import UsageRow

GIB = 1 << 30
FREE = replace(NODE, total={"CPU": 4.0, "GPU": 1.0}, free={"CPU": 4.0, "GPU": 1.0})
IN_USE = replace(FREE, free={"CPU": 4.0, "GPU": 0.0})


@dataclass
class Measured:
    """Stand-in for the agents of the nodes: what they measure of the only GPU."""

    percent: int | None = 0
    memory: int = 0
    part: float = 1.0

    async def of(self, _: ClusterSnapshot) -> Utilisation:
        holders, memory = {"mine": self.part}, {"mine": self.memory}
        gpu = GpuUse(NODE.name, 0, "GPU", self.percent, self.memory, 40 * GIB, holders, memory)
        return Utilisation([], [gpu], [])


@pytest.fixture
def rules() -> Rules:
    return Rules(grace_s=0.3)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Measured:
    monkeypatch.setattr(watcher, "PAUSE_SECONDS", 0.05)
    return Measured()


async def add(gateway: Gateway, job_id: str, team: str, part: float = 1.0, person: str = "bob") -> None:
    await gateway.submit(person, team, submission_id=job_id, entrypoint_num_gpus=part)


async def started(gateway: Gateway, part: float = 1.0, idle_s: int = 600) -> None:
    """Let the job `mine` run on the only GPU."""
    await add_team(gateway, "vision", idle_s=idle_s, share_gpus=1.0)
    await add_team(gateway, "audio")
    gateway.head.node = FREE
    await add(gateway, "mine", "vision", part)
    await settled(gateway, {"mine"})
    gateway.head.node = IN_USE


async def until_idle(gateway: Gateway, idle: bool = True) -> None:
    await gateway.until_job(lambda job: (job.attempts[0].idle_since is not None) is idle)


def age(gateway: Gateway, seconds: float) -> None:
    """Let the job be idle for as long as that."""
    with Session(gateway.store.engine) as session, session.begin():
        session.execute(update(AttemptRow).values(idle_since=now() - timedelta(seconds=seconds)))


async def until_message(gateway: Gateway, text: str) -> None:
    await gateway.until_job(lambda job: text in job.message)


def row(gateway: Gateway) -> UsageRow:
    """The only row of the ledger."""
    with Session(gateway.store.engine) as session:
        return session.scalars(select(UsageRow)).one()


async def test_idle_job_is_notified_and_leaves_for_another_team(gateway: Gateway, use: Measured) -> None:
    """Even though it is within its team's share."""
    await started(gateway)
    await until_idle(gateway)
    await add(gateway, "next", "audio", person="otto")
    await settled(gateway, {"mine"})
    age(gateway, 601)
    await gateway.until_left()
    gateway.head.node = FREE
    await settled(gateway, {"next"})
    gateway.head.node = IN_USE
    # It is within its team's share, and would otherwise drive the other out at once.
    await until_message(gateway, "no other job leaves for it until")
    rows = await settled(gateway, {"next"})
    assert rows["next"].attempts[0].leave_by is None
    job, log = await gateway.store.get("mine"), await gateway.logs.text("mine")
    assert job.attempts[0].outcome == Outcome.PREEMPTED
    assert "The job's GPUs are idle, and next (otto, team audio) waits." in str(job.attempts[0].reason)
    assert log.count("Its GPUs have done nothing since") == 1


async def test_job_that_computes_again_is_not_idle(gateway: Gateway, use: Measured) -> None:
    await started(gateway)
    await until_idle(gateway)
    age(gateway, 601)
    await until_message(gateway, "Its GPUs have done nothing since")
    use.percent = 60
    await until_idle(gateway, idle=False)
    await until_message(gateway, "Job is currently running.")


@pytest.mark.parametrize("idle_s", [0, 3600], ids=["never", "later"])
async def test_idle_job_stays_for_as_long_as_its_team_allows(idle_s: int, gateway: Gateway, use: Measured) -> None:
    await started(gateway, idle_s=idle_s)
    await until_idle(gateway)
    age(gateway, 601)
    await add(gateway, "next", "audio")
    rows = await settled(gateway, {"mine"})
    assert rows["mine"].attempts[0].leave_by is None


async def test_unmeasured_gpu_is_never_idle(gateway: Gateway, use: Measured) -> None:
    use.percent = None
    await started(gateway)
    use.percent = 0
    await until_idle(gateway)
    use.percent = None
    await until_idle(gateway, idle=False)
    use.percent = 50
    assert row(gateway).used_gpu_s == 0


async def test_measured_gpu_seconds_reach_the_ledger(gateway: Gateway, use: Measured) -> None:
    use.percent = 50
    await started(gateway)
    await until(lambda: (row(gateway).used_gpu_s or 0) > 0.2)
    found = row(gateway)
    assert found.used_gpu_s == pytest.approx(0.5 * (found.measured - found.began) / 1000), "of the time that has passed"


async def test_job_beyond_its_part_is_warned_then_ended(gateway: Gateway, use: Measured) -> None:
    use.part, use.percent, use.memory = 0.5, 90, 30 * GIB
    await started(gateway, part=0.5)
    await until_message(gateway, "It is ended unless it uses less within 0.3 s.")
    await gateway.until_state(State.FAILED)
    job, log = await gateway.store.get("mine"), await gateway.logs.text("mine")
    why = "It uses 30.0 GiB of GPU 0 on ray-worker-0, more than the 20.0 GiB of the 0.5 GPUs that it requests."
    assert job.message == f"{why} Request a larger part of a GPU, or let the program use less."
    assert (job.attempts[0].outcome, job.preemptions) == (Outcome.FAILED, 0)
    assert log.count("It is ended unless it uses less") == 1


async def test_job_that_uses_less_after_the_warning_stays(gateway: Gateway, use: Measured) -> None:
    use.part, use.percent, use.memory = 0.5, 90, 30 * GIB
    await started(gateway, part=0.5)
    await until_message(gateway, "It is ended unless")
    use.memory = 19 * GIB
    await until_message(gateway, "Job is currently running.")
    assert (await gateway.store.get("mine")).attempts[0].leave_by is None


# --- Use that a job makes of its GPUs ---


def gpu(percent: int | None = 50, *, used: int = 0, of: dict[str, int] | None = None, **holders: float) -> GpuUse:
    return GpuUse("node", 0, "GPU", percent, used, 40 * GIB, holders or {"mine": 1.0}, of or {})


@pytest.mark.parametrize(
    ("percents", "idle"),
    [((0, 4), True), ((0, 5), False), ((0, None), False), ((), False)],
    ids=["none computes", "one computes", "one is not measured", "holds none"],
)
def test_job_is_idle_if_no_gpu_of_it_computes(percents: tuple[int | None, ...], idle: bool) -> None:
    assert are_idle([gpu(percent) for percent in percents]) is idle


def test_shared_gpu_computes_for_holders_by_their_parts() -> None:
    shared = gpu(80, mine=0.25, other=0.5, third=0.25)
    assert computing_for("mine", [shared, gpu(50)]) == pytest.approx(0.8 * 0.25 + 0.5)
    assert computing_for("mine", [shared, gpu(None)]) is None
    assert computing_for("mine", []) is None


def test_only_gpus_that_a_job_holds_are_its_own() -> None:
    mine, other = gpu(mine=0.5, other=0.5), gpu(other=1.0)
    assert held_by("mine", [mine, other]) == [mine]


@pytest.mark.parametrize(
    ("part", "gib", "too_much"),
    [(0.5, 20.3, False), (0.5, 20.5, True), (1.0, 40, False), (0.25, 10.5, True)],
    ids=["within the tolerance", "beyond its half", "a whole GPU", "beyond its quarter"],
)
def test_memory_beyond_the_part_of_a_gpu_is_named(part: float, gib: float, too_much: bool) -> None:
    found = memory_excess("mine", [gpu(of={"mine": int(gib * GIB)}, mine=part, other=0.25)])
    expected = f"It uses {gib:.1f} GiB of GPU 0 on node, more than the {part * 40:.1f} GiB of the {part:g} GPUs that"
    assert (found or "").startswith(expected) is too_much
    assert (found is not None) is too_much


def test_memory_that_nobody_measures_is_not_too_much() -> None:
    assert memory_excess("mine", [gpu(used=40 * GIB, mine=0.5, other=0.5)]) is None
