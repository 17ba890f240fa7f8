"""Engine, workloads and policies of the queue's simulator, on cases small enough to calculate by hand."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import engine
import pytest
from engine import RESTART_S, Outcome, place, simulate
from policies import FifoEasy, FirstFit, KueueLike, Policy, SlurmLike
from workload import SAMPLES, Job, Workload, alone, generated, make_nodes, make_teams, philly, whole_shares

from mlplatform_gateway.queue.planner.queue import Action, Preempt, Start, View


def job(name: str, arrived: float, duration: float, gpus: int, team: str = "a", limit: float | None = None) -> Job:
    return Job(name, team, f"{team}-0", arrived, duration, limit or duration, gpus)


def workload(*jobs: Job, nodes: Sequence[int] = (2,), shares: dict[str, int] | None = None) -> Workload:
    return Workload("tiny", make_nodes(nodes), make_teams(shares or {"a": 1, "b": 1}), tuple(jobs), 0)


def run(policy: Policy, made: Workload) -> dict[str, Outcome]:
    return {outcome.job.id: outcome for outcome in simulate(made, policy).outcomes}


@dataclass
class Scripted:
    """First fit that also asks jobs to leave at given times, once each."""

    asks: dict[str, float]
    claimant: str = "x"
    name: str = "scripted"
    timed: bool = True
    asked: set[str] = field(default_factory=set)

    def decide(self, view: View) -> Sequence[Action]:
        due = [running for running in view.running if view.now >= self.asks.get(running.id, 1e9)]
        asks = [Preempt(job.id, view.now + 100, self.claimant, "") for job in due if job.id not in self.asked]
        self.asked |= {ask.job for ask in asks}
        return [*asks, *FirstFit().decide(view)]


class Oversubscribing:
    name = "oversubscribing"
    timed = False

    def decide(self, view: View) -> Sequence[Action]:
        return [Start(job.id, False, {}) for job in view.waiting]


@pytest.mark.parametrize(
    ("policy", "gpus", "jobs", "starts"),
    [
        (FirstFit(), 2, [job("1", 0, 100, 1), job("2", 1, 100, 2), job("3", 2, 1000, 1)], [0, 1002, 2]),
        # Job 3 would end after job 1 at 100 s; job 4 ends before, so it starts.
        (
            FifoEasy(),
            2,
            [job("1", 0, 100, 1), job("2", 1, 100, 2), job("3", 2, 1000, 1), job("4", 3, 50, 1)],
            [0, 100, 200, 3],
        ),
        # At 100 s, job 2 needs 2 of 3 GPUs: a job with one GPU may run as long as it wants.
        (FifoEasy(), 3, [job("1", 0, 100, 2), job("2", 1, 100, 2), job("3", 2, 1000, 1)], [0, 100, 2]),
        (SlurmLike(), 2, [job("1", 0, 100, 2), job("2", 1, 100, 2), job("3", 2, 100, 2, "b")], [0, 200, 100]),
    ],
    ids=["small one overtakes", "reserved one is not delayed", "beside the reservation", "of the team that used less"],
)
def test_policy_starts_jobs_in_its_order(policy: Policy, gpus: int, jobs: list[Job], starts: list[float]) -> None:
    ended = run(policy, workload(*jobs, nodes=(gpus,)))
    assert [ended[made.id].first_start for made in jobs] == starts


def test_quota_is_reclaimed_from_borrower_with_kueue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Job 2 borrows; job 3 is within b's quota, so job 2 leaves within the grace of 120 s and has nothing lost."""
    monkeypatch.setattr(engine, "UNSAVED", 0.0)
    jobs = job("1", 0, 1000, 1), job("2", 1, 1000, 1), job("3", 500, 100, 1, "b")
    ended = run(KueueLike(), workload(*jobs))
    start = ended["3"].first_start
    assert start is not None
    assert 500 < start <= 620
    assert [ended[name].preemptions for name in "123"] == [0, 1, 0]
    assert ended["2"].lost_s == RESTART_S
    # It waits for job 3, and the queue's time counts.
    assert ended["2"].waited_s == pytest.approx(100)
    assert ended["2"].ended == pytest.approx(1 + 1000 + 100 + RESTART_S)


def test_unsaved_work_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked at 400 s, it leaves at the deadline; what it lost is at most what it had done."""
    monkeypatch.setattr(engine, "UNSAVED", 1.0)
    monkeypatch.setattr(engine, "MOST_LOST_S", 1e9)
    jobs = job("1", 0, 1000, 2), job("2", 400, 10, 2)
    ended = run(Scripted({"1": 400}), workload(*jobs))
    assert ended["1"].preemptions == 1
    assert ended["1"].lost_s == 500 + RESTART_S
    assert ended["1"].ended == 500 + RESTART_S + 1000
    assert ended["2"].first_start == 500 + RESTART_S + 1000


def test_job_that_ends_before_its_deadline_is_not_preempted() -> None:
    ended = run(Scripted({"1": 400}), workload(job("1", 0, 405, 2), job("2", 400, 10, 2)))
    assert (ended["1"].ended, ended["1"].preemptions, ended["2"].first_start) == (405, 0, 405)


def test_job_asked_without_claimant_ends_at_its_limit() -> None:
    ended = run(Scripted({"1": 400}, claimant=""), workload(job("1", 0, 1000, 2), job("2", 400, 10, 2)))
    assert (ended["1"].ended, ended["1"].reached_limit, ended["2"].first_start) == (500, True, 500)


def test_job_is_entitled_while_its_team_is_below_its_share() -> None:
    jobs = job("1", 0, 100, 1), job("2", 1, 100, 1), job("3", 2, 100, 1, "b"), job("4", 3, 100, 2, "b")
    ended = run(FirstFit(), workload(*jobs))
    assert [ended[name].entitled for name in "1234"] == [True, False, True, False]


def test_start_without_room_is_reported() -> None:
    with pytest.raises(AssertionError, match="oversubscribing started 2, which does not fit"):
        run(Oversubscribing(), workload(job("1", 0, 100, 2), job("2", 0, 100, 1)))


def test_job_larger_than_share_takes_whole_share_when_alone() -> None:
    made = workload(job("1", 0, 100, 4), job("2", 0, 100, 1, "b"), nodes=(4,), shares={"a": 2, "b": 2})
    lonely = alone(made, "a")
    assert [(job.gpus, job.duration_s) for job in lonely.jobs] == [(2, 200)]
    assert [node.total["GPU"] for node in lonely.nodes] == [2]


def test_group_is_packed_on_fullest_node_that_holds_it() -> None:
    free = {"a": {"GPU": 8.0}, "b": {"GPU": 2.0}, "c": {"GPU": 4.0}}
    assert place(2, free) == {"b": {"CPU": 2, "GPU": 2}}
    assert place(10, free) == {"a": {"CPU": 8, "GPU": 8}, "c": {"CPU": 2, "GPU": 2}}
    assert place(15, free) is None


def test_whole_shares_add_up_and_leave_nobody_out() -> None:
    assert whole_shares({"a": 1, "b": 1, "c": 0}, 8) == {"a": 4, "b": 3, "c": 1}


@pytest.mark.parametrize("sample", SAMPLES)
def test_sample_of_trace_is_as_described(sample: int) -> None:
    made = philly(sample)
    assert (made.gpus, sum(team.gpus for team in made.teams.values())) == (64, 64)
    assert 0.79 < made.load < 1.02
    assert 6000 < len(made.jobs) < 8500
    assert all(job.limit_s is not None and job.limit_s >= 1.1 * job.duration_s for job in made.jobs)
    assert made.jobs == philly(sample).jobs


@pytest.mark.parametrize("policy", [FirstFit, FifoEasy, SlurmLike, KueueLike])
def test_every_policy_ends_all_jobs(policy: type[Policy]) -> None:
    made = generated(seed=1, count=300, nodes=2)
    assert len({outcome.job.id for outcome in simulate(made, policy()).outcomes if outcome.ended}) == 300
