"""The contract between teams on full clusters whose free resources would be in pieces."""

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from queues import effects, is_beyond_share, left

from mlplatform.capacity.resources import Node, Request, Resources, WorkerGroup
from mlplatform_gateway.queue.planner.plan import plan
from mlplatform_gateway.queue.planner.queue import JobClass, Preempt, Rules, RunningJob, Team, View, WaitingJob
from mlplatform_gateway.queue.planner.state import execute

RULES = Rules(grace_s=100, overdue_s=5000, hold_back_s=50)
ONE_GPU = Request(Resources(gpus=1))
LARGE = (
    Request(Resources(gpus=2)),
    Request(Resources(gpus=4)),
    Request(Resources(), WorkerGroup(2, 1, 2)),
    Request(Resources(1), WorkerGroup(3, 1, 1)),
)
CLUSTERS = settings(max_examples=60, deadline=None, derandomize=True, database=None)


@st.composite
def full_clusters(draw: st.DrawFn) -> View:
    """Draw small nodes full of small old jobs, of teams whose shares use up all GPUs, and larger jobs that wait."""
    nodes = [
        Node(f"n{i}", True, {"CPU": 8.0, "GPU": 4.0}, {"CPU": 8.0, "GPU": 0.0}) for i in range(draw(st.integers(2, 3)))
    ]
    gpus = 4 * len(nodes)
    first = draw(st.integers(1, gpus - 1))
    teams = {"a": Team("a", first, 2 * first), "b": Team("b", gpus - first, 2 * (gpus - first))}
    owners = draw(st.lists(st.sampled_from("ab"), min_size=gpus, max_size=gpus))
    ages = draw(st.permutations(range(gpus)))
    running = [
        RunningJob(
            f"r{i}", i, owner, f"{owner}-0", JobClass.NORMAL, ONE_GPU, {f"n{i // 4}": {"GPU": 1.0}}, -5000.0 - age
        )
        for i, (owner, age) in enumerate(zip(owners, ages, strict=True))
    ]
    asks = draw(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(LARGE)), min_size=1, max_size=4))
    waiting = [
        WaitingJob(f"w{i}", 100 + i, owner, f"{owner}-0", JobClass.NORMAL, request, 0.0)
        for i, (owner, request) in enumerate(asks)
    ]
    return View(0.0, nodes, teams, waiting, running, rules=RULES)


@CLUSTERS
@given(view=full_clusters())
def test_nothing_within_its_share_is_taken_back(view: View) -> None:
    preempted = [action.job for action in plan(view) if isinstance(action, Preempt)]
    assert all(is_beyond_share(view, job) for job in view.running if job.id in preempted)


@CLUSTERS
@given(view=full_clusters(), order=st.randoms(use_true_random=False))
def test_claimant_starts_when_its_victims_have_left_whoever_arrives(view: View, order: random.Random) -> None:
    view = execute(view, effects(plan(view)))
    claimants = {job.id for job in view.waiting if job.reserved}
    leaving = sorted(job.id for job in view.running if job.notice)
    order.shuffle(leaving)
    for number, name in enumerate(leaving):
        view = left(view, name)
        late = [
            WaitingJob(f"{team}{number}", 200 + number, team, f"{team}-1", JobClass.URGENT, ONE_GPU, 0.0)
            for team in "ab"
        ]
        view = replace(view, waiting=(*view.waiting, *late))
        view = execute(view, effects(plan(view)))
    assert claimants <= {job.id for job in view.running}


@CLUSTERS
@given(view=full_clusters(), alone=st.booleans())
def test_overdue_job_starts_when_older_ones_have_left_whoever_arrives(view: View, alone: bool) -> None:
    teams = {"b": Team("b", 0, 0)} if alone else {name: Team(name, 0, 0) for name in "ab"}
    owned = [replace(job, team="b", person="b-0") for job in view.running]
    overdue = replace(view.waiting[0], team="b", person="b-0", since=-RULES.overdue_s)
    view = replace(view, teams=teams, running=owned, waiting=(overdue,))
    for number, job in enumerate(sorted(owned, key=lambda job: job.started)):
        view = left(view, job.id)
        late = WaitingJob(f"l{number}", 200 + number, next(iter(teams)), "late", JobClass.URGENT, ONE_GPU, 0.0)
        view = replace(view, waiting=(*view.waiting, late))
        view = execute(view, effects(plan(view)))
    for job in view.running:
        if job.notice:
            view = left(view, job.id)
    view = execute(view, effects(plan(view)))
    assert overdue.id in {job.id for job in view.running}
