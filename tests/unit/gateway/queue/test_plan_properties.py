"""Invariants of the planner over random nodes, teams, jobs, losses and kills of what executes its plans."""

import random

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test
from queue_machine import REQUESTS, Queue

from mlplatform.capacity.resources import Node, Request, Resources, WorkerGroup
from mlplatform_gateway.queue.planner.feasibility import check
from mlplatform_gateway.queue.planner.queue import Caps, JobClass
from mlplatform_gateway.queue.planner.room import Room
from mlplatform_gateway.usage.ledger import Decayed

CROWDED_STEPS = 250


class Crowd:
    """Random steps of a queue that is mostly full, where promises, holds and backfill meet; a seed determines them."""

    def __init__(self, number: int) -> None:
        self.chance = random.Random(number)  # noqa: S311 - reproducible
        self.queue = Queue()
        shares = [self.chance.randint(0, 6) for _ in range(number % 3 + 1)]
        caps = [self.chance.choice([Caps()] * 4 + [Caps(gpus=5), Caps(cpus=12)]) for _ in shares]
        teams = [(share, 1.0, cap, Caps()) for share, cap in zip(shares, caps, strict=True)]
        self.queue.build(gpus=[self.chance.randint(2, 4) for _ in range(self.chance.randint(1, 4))], teams=teams)

    def step(self) -> None:
        queue, chance, index = self.queue, self.chance, self.chance.randint(0, 20)
        waiting, running = len(queue.view.waiting), bool(queue.view.running)
        steps = {
            self._submit: 6 if waiting < 12 else 0,
            lambda: queue.wait(seconds=chance.choice([1.0, 60.0, 100.0, 400.0])): 3,
            lambda: queue.finish(index=index): 2 * running,
            queue.execute_whole_plan: 4,
            queue.no_backfill_moves_a_hold_later: 3,
            lambda: queue.takes_more_than_it_asked_for(index=index, key="GPU"): 0.5 * running,
            lambda: queue.lose_or_regain_a_node(index=index): 0.1,
            lambda: queue.ray_reports_other_free_resources(index=index, part=chance.choice([0.0, 0.5, 1.0])): 0.3,
            lambda: queue.ray_chose_another_node(index=index, to=chance.randint(0, 3)): 0.5 * running,
            lambda: queue.becomes_idle_or_busy(index=index): 0.3 * running,
            lambda: queue.killed_in_between_comes_to_the_same_end(steps=1): 0.3,
        }
        chance.choices(list(steps), list(steps.values()))[0]()
        queue.no_node_is_oversubscribed()
        queue.promises_will_be_kept()
        queue.what_is_owed_comes_within_grace()
        queue.room_is_kept_for_what_is_owed()

    def _submit(self) -> None:
        chance = self.chance
        request = chance.choice(
            [
                Request(Resources(1, chance.choice([0.5, 1, 2, 4]))),
                Request(Resources(chance.choice([0, 2]), chance.choice([1, 2]))),
                Request(Resources(), WorkerGroup(chance.randint(1, 6), 1, 1)),
            ]
        )
        self.queue.submit(
            team=chance.randint(0, 2),
            person=chance.randint(0, 1),
            job_class=chance.choice(list(JobClass)),
            request=request,
            limit=chance.choice([None, 200.0, 1000.0, 4000.0]),
            group="",
        )


def _run(number: int) -> None:
    """Take 10,000 random steps, which the number determines."""
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        seed(number)(Queue),
        settings=settings(
            max_examples=200,
            stateful_step_count=50,
            deadline=None,
            database=None,
            suppress_health_check=checks,
        ),
    )


@pytest.mark.timeout(900)
def test_invariants_hold_over_ten_thousand_steps() -> None:
    _run(0)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "number", [*range(20), *(pytest.param(number, marks=pytest.mark.nightly) for number in range(20, 200))]
)
def test_invariants_hold_in_crowded_queue(number: int) -> None:
    crowd = Crowd(number)
    for _ in range(CROWDED_STEPS):
        crowd.step()


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", range(1, 31))
def test_invariants_hold_over_hundreds_of_thousands_of_steps(number: int) -> None:
    _run(number)


@settings(deadline=None)
@given(
    parts=st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 64)), min_size=1, max_size=20),
    half_life=st.floats(60, 1e6),
    asks=st.lists(st.floats(0, 1e6), max_size=30),
)
def test_decayed_use_is_independent_of_when_it_is_asked(
    parts: list[tuple[float, float]], half_life: float, asks: list[float]
) -> None:
    seldom = often = Decayed(1000.0, 0.0, half_life)
    for seconds, held in parts:
        end = seldom.at + seconds
        for between in sorted(ask for ask in asks if often.at < ask < end):
            often = often.later(between, held)
        seldom, often = seldom.later(end, held), often.later(end, held)
    assert often.value == pytest.approx(seldom.value, rel=1e-9, abs=1e-6)


@settings(deadline=None)
@given(gpus=st.lists(st.sampled_from([0, 0.4, 1, 1.5, 2, 4]), min_size=1, max_size=4), request=REQUESTS)
def test_request_is_placed_exactly_where_it_fits(gpus: list[float], request: Request) -> None:
    total_amounts = {"CPU": 100.0, "GPU": 100.0}
    nodes = [Node(f"n{i}", True, total_amounts, {"CPU": 4.0, "GPU": free}) for i, free in enumerate(gpus)]
    placement = Room(nodes, {node.name: node.free for node in nodes}).place(request)
    assert (placement is not None) == (check(nodes, request.entrypoint, request.workers) is None)
