"""Resources that jobs hold beyond their requests: charged, reported and taken back; and the terms of all jobs."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace

import pytest
from gateway_parts import NODE, Gateway, ray
from held import rows
from queued import add, add_team, settled

from mlplatform.gateway.audit.log import PLATFORM
from mlplatform.gateway.control import charging
from mlplatform.gateway.jobs.states import Outcome
from mlplatform.gateway.people.store import People
from mlplatform.gateway.upstream.ray import ClusterSnapshot
from mlplatform.gateway.usage.ledger import PARTS, Kind
from mlplatform.gateway.usage.schema import UsageRow
from mlplatform.scheduling.queue import Placement, Rules
from mlplatform.scheduling.utilisation import Utilisation

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
    monkeypatch.setattr(charging, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(charging, "CPU_SECONDS", 0.1)
    return Measured()


def charges(gateway: Gateway, job_id: str) -> list[tuple[str, float, float]]:
    """Terms, GPUs and CPUs of a job's rows in the ledger."""
    return [(row.kind, row.gpus / PARTS, row.cpus / PARTS) for row in rows(gateway.store) if row.job_id == job_id]


async def until_charged(gateway: Gateway, job_id: str, kind: Kind, gpus: float, cpus: float) -> None:
    async def charged() -> bool:
        return charges(gateway, job_id)[-1:] == [(kind, gpus, cpus)]

    await gateway.until(charged)


async def greedy(gateway: Gateway, use: Measured) -> None:
    """Let a job that requests nothing hold a whole node, all of it the share of another team."""
    gateway.head.node = FREE
    await add_team(gateway, "audio")
    await add_team(gateway, "vision", share_cpus=4.0, share_gpus=1.0)
    await add(gateway, "greedy", 0, "audio", "otto")
    gateway.reconciler.wake()
    await settled(gateway, {"greedy"})
    gateway.head.node, use.held = IN_USE, {"greedy": ALL}


def test_unrequested_resources_are_charged_and_reported(gateway: Gateway, use: Measured) -> None:
    async def scenario() -> str:
        async with gateway.at_work():
            await greedy(gateway, use)
            await until_charged(gateway, "greedy", Kind.BORROWED, 1, 4)
            use.held = {}
            await until_charged(gateway, "greedy", Kind.SHARE, 0, 0)
            return await gateway.logs.text("greedy")

    log = asyncio.run(scenario())
    assert log.count("The job holds 1 GPU beyond its request.") == 1


def test_unrequested_resources_return_to_the_team_that_lends_them(gateway: Gateway, use: Measured) -> None:
    async def scenario() -> None:
        async with gateway.at_work():
            await greedy(gateway, use)
            await add(gateway, "owed", 4, "vision", "alice")

            async def left() -> bool:
                return (await gateway.store.get("greedy")).preemptions == 1

            await gateway.until(left)
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

    asyncio.run(scenario())


def test_unmeasured_node_changes_no_charge(gateway: Gateway, use: Measured) -> None:
    async def scenario() -> None:
        async with gateway.at_work():
            await greedy(gateway, use)
            await until_charged(gateway, "greedy", Kind.BORROWED, 1, 4)
            use.complete, use.held = False, {}
            looks = 0

            async def of(cluster: ClusterSnapshot) -> Utilisation:
                nonlocal looks
                looks += 1
                return Utilisation([], [], [], {}, complete=False)

            use.of = of  # type: ignore[method-assign]

            async def looked() -> bool:
                return looks >= 3

            await gateway.until(looked)

    asyncio.run(scenario())
    assert charges(gateway, "greedy")[-1] == (Kind.BORROWED, 1, 4)


def test_requested_resources_are_charged_until_the_end(gateway: Gateway, use: Measured) -> None:
    """Also while its processes hold less, as before it has started its workers."""

    async def scenario() -> None:
        async with gateway.at_work():
            await add(gateway, "modest", 3)
            await settled(gateway, {"modest"})
            gateway.head.node = replace(NODE, free={"CPU": 0.0})
            use.held = {"modest": {NODE.name: {"CPU": 1.0}}}
            await add(gateway, "other", 0)
            use.held["other"] = {NODE.name: {"CPU": 1.0}}
            await until_charged(gateway, "other", Kind.SHARE, 0, 1)

    asyncio.run(scenario())
    assert charges(gateway, "modest") == [(Kind.SHARE, 0, 3)]


def test_borrowed_becomes_share_when_older_jobs_end(gateway: Gateway, use: Measured) -> None:
    async def scenario() -> None:
        await add_team(gateway, "audio", share_cpus=2.0)
        await add_team(gateway, "vision", share_cpus=2.0)
        async with gateway.at_work():
            await add(gateway, "old", 2, "audio", "otto")
            await settled(gateway, {"old"})
            await add(gateway, "young", 2, "audio", "otto")
            await settled(gateway, {"old", "young"})
            gateway.head.node = replace(NODE, free={"CPU": 0.0})
            await until_charged(gateway, "young", Kind.BORROWED, 0, 2)
            (first,) = (await gateway.store.get("old")).attempts
            gateway.head.jobs[first.ray_submission_id] = ray("SUCCEEDED")
            gateway.head.node = replace(NODE, free={"CPU": 2.0})
            await until_charged(gateway, "young", Kind.SHARE, 0, 2)

    asyncio.run(scenario())


def test_job_beyond_its_limit_is_in_overtime(gateway: Gateway, use: Measured) -> None:
    async def scenario() -> list[UsageRow]:
        async with gateway.at_work():
            await gateway.submit(metadata={"time_limit": "1s"})
            await until_charged(gateway, "mine", Kind.OVERTIME, 0, 0)
            return rows(gateway.store)

    first, second = asyncio.run(scenario())
    assert first.ended is not None
    assert first.ended - first.began >= 1000
    assert second.ended is None


def test_waiting_team_makes_running_job_a_borrower(gateway: Gateway, use: Measured) -> None:
    async def scenario() -> None:
        await add_team(gateway, "audio")
        async with gateway.at_work():
            await add(gateway, "alone", 4, "audio", "otto")
            await settled(gateway, {"alone"})
            gateway.head.node = replace(NODE, free={"CPU": 0.0})
            await until_charged(gateway, "alone", Kind.SHARE, 0, 4)
            await add(gateway, "shared", 4)
            await until_charged(gateway, "alone", Kind.BORROWED, 0, 4)

    asyncio.run(scenario())


def test_terms_change_while_a_node_is_silent(gateway: Gateway, use: Measured) -> None:
    async def scenario() -> None:
        async with gateway.at_work():
            await greedy(gateway, use)
            await until_charged(gateway, "greedy", Kind.BORROWED, 1, 4)
            use.complete, use.held = False, {}
            await People(gateway.store.engine).set_team("audio", {"share_gpus": 1.0, "share_cpus": 4.0}, PLATFORM)
            await People(gateway.store.engine).set_team("vision", {"share_gpus": 0.0, "share_cpus": 0.0}, PLATFORM)
            await until_charged(gateway, "greedy", Kind.SHARE, 1, 4)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("kind", "amounts", "seconds", "due"),
    [
        (Kind.SHARE, {"GPU": 1, "CPU": 2}, 1000, False),
        (Kind.SHARE, {"GPU": 1, "CPU": 3}, 1, False),
        (Kind.SHARE, {"GPU": 1, "CPU": 3}, 1000, True),
        (Kind.SHARE, {"GPU": 2, "CPU": 2}, 1, True),
        (Kind.OVERTIME, {"GPU": 1, "CPU": 2}, 1, True),
    ],
)
def test_ledger_follows_gpus_and_terms_at_once_and_cpus_later(
    kind: Kind, amounts: dict[str, float], seconds: float, due: bool
) -> None:
    before = charging.Charge(Kind.SHARE, {"GPU": 1, "CPU": 2}, time.monotonic() - seconds)
    assert before.is_due(kind, amounts) == due
