"""Measures of the queue's simulator, calculated by hand."""

import json
from pathlib import Path

import pytest
from engine import Outcome, Result
from measures import Measures, jain, measure, percentile, slowdown
from report import targets, write_json
from workload import Job, Workload, make_nodes, make_teams


def outcome(name: str, team: str, start: float, end: float, gpus: int = 1, **fields: float) -> Outcome:
    job = Job(name, team, f"{team}-0", 0.0, end - start, None, gpus)
    return Outcome(job, entitled=gpus == 1, first_start=start, ended=end, **fields)  # type: ignore[arg-type]


def result(*outcomes: Outcome) -> Result:
    jobs = tuple(outcome.job for outcome in outcomes)
    return Result("ours", Workload("tiny", make_nodes([8]), make_teams({"a": 4, "b": 4}), jobs, 0), list(outcomes))


@pytest.fixture
def measured() -> Measures:
    shared = result(
        outcome("1", "a", 0, 3600),
        outcome("2", "a", 100, 7300),
        outcome("3", "b", 7200, 10800, 8, waited_s=7200.0, preemptions=2, lost_s=900.0),
    )
    alone = {
        "a": result(outcome("1", "a", 0, 3600), outcome("2", "a", 0, 7200)),
        "b": result(outcome("3", "b", 0, 7200, 4)),
    }
    return measure(shared, alone)


def test_completion_is_mean_from_arrival_to_end(measured: Measures) -> None:
    assert measured.completion_h == pytest.approx((3600 + 7300 + 10800) / 3 / 3600)


def test_only_entitled_jobs_count_in_waits_within_share(measured: Measures) -> None:
    assert (measured.entitled_jobs, measured.entitled_wait_p99_s) == (2, 100)


def test_rho_relates_completion_to_team_alone(measured: Measures) -> None:
    assert measured.rho == {"a": pytest.approx(10900 / 10800), "b": pytest.approx(1.5)}
    assert measured.worst_rho == pytest.approx(1.5)


def test_all_time_in_queue_counts_for_large_jobs(measured: Measures) -> None:
    assert measured.large_wait_p99_h == 2


def test_lost_work_is_in_gpu_hours(measured: Measures) -> None:
    assert (measured.preemptions, measured.lost_gpu_h) == (2, 2)
    assert measured.lost_share == pytest.approx(2 / (1 + 2 + 8))


def test_percentile_is_a_value_that_occurred() -> None:
    assert percentile(range(1, 101), 99) == 99
    assert percentile(range(1, 102), 99) == 100
    assert percentile([7], 99) == 7
    assert percentile([], 99) == 0


def test_jain_is_one_for_equal_and_one_nth_for_one() -> None:
    assert jain([3, 3, 3]) == pytest.approx(1)
    assert jain([5, 0, 0, 0]) == pytest.approx(1 / 4)


def test_slowdown_of_short_job_is_bounded() -> None:
    """A wait of a minute before a job of ten seconds: 70 / 600 is below 1, so it counts as 1."""
    assert slowdown([outcome("1", "a", 60, 70)]) == 1
    assert slowdown([outcome("1", "a", 1200, 2400)]) == 2


def test_target_compares_with_best_policy(measured: Measures) -> None:
    better = Measures(**{**vars(measured), "policy": "other", "completion_h": measured.completion_h / 1.1})
    worse = Measures(**{**vars(measured), "policy": "third", "completion_h": measured.completion_h * 2})
    waits, rho, completion = targets([worse, measured, better], {}, grace_s=100)["tiny"]
    assert (waits.value, waits.holds) == (100, True)
    assert (rho.value, rho.holds) == (pytest.approx(1.5), False)
    assert (completion.value, completion.holds) == (pytest.approx(1.1), False)
    assert "other" in str(completion)


@pytest.mark.parametrize(("warm", "holds"), [(49.0, True), (51.0, False)])
def test_long_queue_is_planned_within_fifty_milliseconds(warm: float, holds: bool) -> None:
    (target,) = targets([], {"ours": {"cold": 100.0, "warm": warm}}, grace_s=100)["long queue"]
    assert target.holds is holds


def test_json_has_every_measure(measured: Measures, tmp_path: Path) -> None:
    write_json([measured], {"ours": {"cold": 20.5, "warm": 12.5}}, tmp_path / "results.json")
    stored = json.loads((tmp_path / "results.json").read_text())
    assert stored["planning_ms"] == {"ours": {"cold": 20.5, "warm": 12.5}}
    assert Measures(**stored["measures"][0]) == measured
