"""Resources that jobs hold beyond their requests: counted, reported and taken back; and which of them are borrowed."""

import asyncio
from dataclasses import dataclass, field, replace

import pytest
from gateway_parts import NODE, Gateway, add, add_team, ray, settled
from held import rows
from sqlalchemy import update
from sqlalchemy.orm import Session
from waiting import until

from mlplatform_gateway.audit.store import PLATFORM
from mlplatform_gateway.jobs import watcher
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.jobs.states import Outcome
from mlplatform_gateway.people.store import People
from mlplatform_gateway.queue.planner.queue import Placement, Rules
from mlplatform_gateway.ray.head import ClusterSnapshot
from mlplatform_gateway.ray.utilisation import Utilisation
from mlplatform_gateway.usage.ledger import PARTS
from mlplatform_gateway.usage.schema import UsageRow

FREE = replace(NODE, total={"CPU": 4.0, "GPU": 1.0}, free={"CPU": 4.0, "GPU": 1.0})
IN_USE = replace(FREE, free={"CPU": 0.0, "GPU": 0.0})
ALL = {NODE.name: {"CPU": 4.0, "GPU": 1.0}}


@dataclass
class Measured:
    """Stand-in for the agents of the nodes: what the processes of jobs hold."""

    held: dict[str, Placement] = field(default_factory=dict)
    complete: bool = True

    async def of(self, _: ClusterSnapshot) -> Utilisation:
        return Utilisation([], [], [], self.held, self.complete)


@pytest.fixture
def rules() -> Rules:
    return Rules(grace_s=0.3)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Measured:
    monkeypatch.setattr(watcher, "PAUSE_SECONDS", 0.05)
    return Measured()


def row_of(gateway: Gateway, job_id: str) -> UsageRow:
    """The only row of a job in the ledger."""
    (row,) = (row for row in rows(gateway.store) if row.job_id == job_id)
    return row


async def until_held(gateway: Gateway, job_id: str, gpus: float, cpus: float, *, borrowed: bool) -> None:
    """Wait until an amount is counted from one measurement to the next, and is borrowed or not."""
    await until(lambda: any(row.job_id == job_id for row in rows(gateway.store)))
    former = row_of(gateway, job_id)

    def held() -> bool:
        nonlocal former
        before, former = former, row_of(gateway, job_id)
        passed = former.measured - before.measured
        if not passed:
            return False
        excess = former.excess_gpu - before.excess_gpu, former.excess_cpu - before.excess_cpu
        granted = zip((former.gpus, former.cpus), excess, strict=True)
        found = [round((amount + more / passed) / PARTS, 4) for amount, more in granted]
        return (found, former.borrowed) == ([gpus, cpus], borrowed)

    await until(held)


async def greedy(gateway: Gateway, use: Measured) -> None:
    """Let a job that requests nothing hold a whole node, all of it the share of another team."""
    gateway.head.node = FREE
    await add_team(gateway, "audio")
    await add_team(gateway, "vision", share_cpus=4.0, share_gpus=1.0)
    await add(gateway, "greedy", 0, "audio", "otto")
    gateway.reconciler.wake()
    await settled(gateway, {"greedy"})
    gateway.head.node, use.held = IN_USE, {"greedy": ALL}


async def test_unrequested_resources_are_counted_and_reported(gateway: Gateway, use: Measured) -> None:
    await greedy(gateway, use)
    await until_held(gateway, "greedy", 1, 4, borrowed=True)
    use.held = {}
    await until_held(gateway, "greedy", 0, 0, borrowed=False)
    log = await gateway.logs.text("greedy")
    assert log.count("The job holds 1 GPU beyond its request.") == 1


async def test_unrequested_resources_return_to_the_team_that_lends_them(gateway: Gateway, use: Measured) -> None:
    await greedy(gateway, use)
    await add(gateway, "owed", 4, "vision", "alice")
    await gateway.until_left("greedy")
    gateway.head.node, use.held = FREE, {}
    await settled(gateway, {"owed"})
    gateway.head.node = replace(FREE, free={"CPU": 0.0, "GPU": 1.0})
    # It returns when all is free that it held.
    row = (await settled(gateway, {"owed"}))["greedy"]
    assert row.attempts[0].outcome == Outcome.PREEMPTED
    assert "owed" in str(row.attempts[0].reason)
    assert len(row.attempts) == 1
    _, owed = await gateway.store.request_stop("owed")
    await gateway.reconciler.stop(owed)
    gateway.head.node = FREE
    await settled(gateway, {"greedy"})


async def test_job_on_silent_node_holds_what_it_held(gateway: Gateway, use: Measured) -> None:
    await greedy(gateway, use)
    await until_held(gateway, "greedy", 1, 4, borrowed=True)
    use.complete, use.held = False, {}
    before = row_of(gateway, "greedy")
    await until(lambda: row_of(gateway, "greedy").measured > before.measured + 500)
    after = row_of(gateway, "greedy")
    assert after.excess_gpu - before.excess_gpu == PARTS * (after.measured - before.measured)
    assert after.borrowed


async def test_restarted_gateway_continues_to_count(idle: Gateway, use: Measured) -> None:
    async with idle.at_work():
        await greedy(idle, use)
        await until_held(idle, "greedy", 1, 4, borrowed=True)
    killed = row_of(idle, "greedy")
    await asyncio.sleep(0.5)
    async with idle.at_work():
        await until_held(idle, "greedy", 1, 4, borrowed=True)
    after = row_of(idle, "greedy")
    assert after.measured - killed.measured >= 500
    assert after.excess_gpu - killed.excess_gpu == PARTS * (after.measured - killed.measured)


async def test_requested_resources_are_granted_until_the_end(gateway: Gateway, use: Measured) -> None:
    """Also while its processes hold less, as before it has started its workers."""
    await add(gateway, "modest", 3)
    await settled(gateway, {"modest"})
    gateway.head.node = replace(NODE, free={"CPU": 0.0})
    use.held = {"modest": {NODE.name: {"CPU": 1.0}}}
    await add(gateway, "other", 0)
    use.held["other"] = {NODE.name: {"CPU": 1.0}}
    await until_held(gateway, "other", 0, 1, borrowed=False)
    await until_held(gateway, "modest", 0, 3, borrowed=False)
    row = row_of(gateway, "modest")
    assert (row.excess_gpu, row.excess_cpu, row.most_gpus, row.most_cpus) == (0, 0, 0, 3 * PARTS)


async def test_borrowed_becomes_share_when_older_jobs_end(gateway: Gateway, use: Measured) -> None:
    await add_team(gateway, "audio", share_cpus=2.0)
    await add_team(gateway, "vision", share_cpus=2.0)
    await add(gateway, "old", 2, "audio", "otto")
    await settled(gateway, {"old"})
    await add(gateway, "young", 2, "audio", "otto")
    await settled(gateway, {"old", "young"})
    gateway.head.node = replace(NODE, free={"CPU": 0.0})
    await until_held(gateway, "young", 0, 2, borrowed=True)
    (first,) = (await gateway.store.get("old")).attempts
    gateway.head.jobs[first.ray_submission_id] = ray("SUCCEEDED")
    gateway.head.node = replace(NODE, free={"CPU": 2.0})
    await until_held(gateway, "young", 0, 2, borrowed=False)


async def test_job_beyond_its_limit_borrows_nothing(gateway: Gateway, use: Measured) -> None:
    await greedy(gateway, use)
    await until_held(gateway, "greedy", 1, 4, borrowed=True)
    with Session(gateway.store.engine) as session, session.begin():
        session.execute(update(JobRow).values(limit_s=0.1))
    await until_held(gateway, "greedy", 1, 4, borrowed=False)


async def test_waiting_team_makes_running_job_a_borrower(gateway: Gateway, use: Measured) -> None:
    await add_team(gateway, "audio")
    await add(gateway, "alone", 4, "audio", "otto")
    await settled(gateway, {"alone"})
    gateway.head.node = replace(NODE, free={"CPU": 0.0})
    await until_held(gateway, "alone", 0, 4, borrowed=False)
    await add(gateway, "shared", 4)
    await until_held(gateway, "alone", 0, 4, borrowed=True)


async def test_terms_change_while_a_node_is_silent(gateway: Gateway, use: Measured) -> None:
    await greedy(gateway, use)
    await until_held(gateway, "greedy", 1, 4, borrowed=True)
    use.complete, use.held = False, {}
    await People(gateway.store.engine).set_team("audio", {"share_gpus": 1.0, "share_cpus": 4.0}, PLATFORM)
    await People(gateway.store.engine).set_team("vision", {"share_gpus": 0.0, "share_cpus": 0.0}, PLATFORM)
    await until_held(gateway, "greedy", 1, 4, borrowed=False)
