"""`run_config` on a real Ray: a training with two fits; a worker is killed between two checkpoints."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from embedded import SCRIPTS, command, job_run, processes, runs_of, succeeded

from mlplatform.client.jobs import Jobs, report_in
from mlplatform.local.platform import LocalPlatform
from mlplatform.settings.job import Settings
from mlplatform.storage import objects

pytestmark = pytest.mark.usefixtures("environment")

README = Path(__file__).parents[2] / "README.md"

STEPS = 10
KILL_AFTER_REPORTS = 5
"""Two steps after the checkpoint of the third step, one before that of the sixth."""


@pytest.fixture(scope="module")
def trained(local: LocalPlatform, reached: Settings, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[str]]:
    """Id and log of the job, which hurries after the worker was killed."""
    hurry = tmp_path_factory.mktemp("trained") / "hurry"
    held = [f"--steps={STEPS}", "--pause=0.2", f"--hold={KILL_AFTER_REPORTS}", f"--hurry={hurry}"]
    options = [*held, "--detailed", "--fits", "first", "second"]
    with Jobs(reached) as jobs:
        job_id = jobs.submit(["python", "steps.py", *options], SCRIPTS, name="steps")
        log: list[str] = []
        for line in jobs.follow(job_id):
            log.append(line)
            if report_in(line) and sum(report_in(old) is not None for old in log) == KILL_AFTER_REPORTS:
                next(process for process in processes(local) if "RayTrainWorker" in command(process)).kill()
                hurry.touch()
        assert jobs.get(job_id).status == "SUCCEEDED", "\n".join(log[-40:])
        return job_id, log


def points(job_id: str, key: str) -> list[tuple[int, float]]:
    from mlflow import MlflowClient

    history = MlflowClient().get_metric_history(job_run(job_id).info.run_id, key)
    return [(point.step, point.value) for point in history]


def read_back(log: list[str], name: str) -> list[dict[str, Any]]:
    """The reports that the job read with `mlplatform.history`."""
    marker = f"{name}: history "
    return json.loads(next(line for line in log if marker in line).partition(marker)[2])


def test_training_resumed_from_last_checkpoint(trained: tuple[str, list[str]]) -> None:
    reports = [report for line in trained[1] if (report := report_in(line))]
    starts = list(dict.fromkeys((report["run"], report["start"]) for report in reports))
    assert len(starts) == 3, f"expected the first fit, its restart and the second fit, got: {starts}"
    (_, resumed_at) = starts[1]
    assert starts == [("first", 0), ("first", resumed_at), ("second", 0)]
    assert resumed_at in (3, 6)


@pytest.mark.parametrize("prefix", ["", "second/"])
def test_replayed_steps_have_one_point_per_metric(trained: tuple[str, list[str]], prefix: str) -> None:
    expected = [(step, pytest.approx(1 / (step + 1))) for step in range(STEPS)]
    assert points(trained[0], f"{prefix}loss") == expected


def test_metric_of_both_ranks_is_aggregated(trained: tuple[str, list[str]]) -> None:
    assert points(trained[0], "rank") == [(step, 0.5) for step in range(STEPS)]


def test_invalid_metric_name_is_replaced_with_notice(trained: tuple[str, list[str]]) -> None:
    assert points(trained[0], "loss_top_") == [(step, float(step)) for step in range(STEPS)]
    assert any("'loss[top]' is logged as 'loss_top_'" in line for line in trained[1])


def test_nan_metric_value_is_kept(trained: tuple[str, list[str]]) -> None:
    assert len(points(trained[0], "nothing")) == STEPS
    assert all(math.isnan(report["nothing"]) for report in read_back(trained[1], "first"))


def test_nested_numpy_values_are_kept(trained: tuple[str, list[str]]) -> None:
    found = read_back(trained[1], "first")
    expected = [{"loss": pytest.approx(1 / (step + 1)), "of": [step]} for step in range(STEPS)]
    assert [report["nested"] for report in found] == expected


@pytest.mark.nightly
def test_checkpoints_without_score_allow_restart(local: LocalPlatform, reached: Settings) -> None:
    """Ray stores NaN, the score of these checkpoints, as null, which it cannot compare after a restart."""
    with Jobs(reached) as jobs:
        options = ["--steps=7", "--workers=1", f"--hold={KILL_AFTER_REPORTS}", "--metric=nothing"]
        job_id = jobs.submit(["python", "steps.py", *options], SCRIPTS, name="unscored", max_restarts_on_failure=1)
        log: list[str] = []
        for line in jobs.follow(job_id):
            log.append(line)
            if sum(report_in(old) is not None for old in log) == KILL_AFTER_REPORTS and report_in(line):
                drivers = (one for one in processes(local) if re.match(r"\S*python steps\.py", command(one)))
                next(drivers).kill()
        assert jobs.get(job_id).status == "SUCCEEDED", "\n".join(log[-40:])
    assert points(job_id, "loss") == [(step, pytest.approx(1 / (step + 1))) for step in range(7)]
    resumed = {report["start"] for line in log if (report := report_in(line))}
    assert resumed == {0, 3}


@pytest.mark.parametrize("name", ["first", "second"])
def test_history_returns_all_reports(trained: tuple[str, list[str]], name: str) -> None:
    found = read_back(trained[1], name)
    assert [report["step"] for report in found] == list(range(STEPS))
    assert [report["training_iteration"] for report in found] == list(range(1, STEPS + 1))
    assert [report.get("done", False) for report in found] == [False] * (STEPS - 1) + [True]
    assert all({rank["rank"] for rank in report["ranks"]} == {0, 1} for report in found)
    assert all(rank["hostname"] and rank["pid"] for report in found for rank in report["ranks"])
    assert {report["job_id"] for report in found} == {trained[0]}
    assert all("checkpoint" in report for report in found[2::3])


def test_detailed_history_counts_from_restore(trained: tuple[str, list[str]]) -> None:
    reports = [report for line in trained[1] if (report := report_in(line)) and report["run"] == "first"]
    since = [report["iterations_since_restore"] for report in reports]
    again = since.index(1, 1)
    assert since[:again] == list(range(1, again + 1))
    assert reports[again]["step"] == reports[again]["start"] > 0


def test_numpy_conversion_is_logged_once_per_worker(trained: tuple[str, list[str]]) -> None:
    warnings = [line for line in trained[1] if "'loss' is reported as a Python value, not as float32" in line]
    assert 1 <= len(warnings) <= 6


def test_each_fit_has_its_own_checkpoints(trained: tuple[str, list[str]], reached: Settings) -> None:
    for name in ("first", "second"):
        files = objects.list_files(f"{reached.storage}/{trained[0]}/{name}")
        kept = {Path(file).parent.name for file in files if file.endswith("state.json")}
        assert len(kept) == 2, "not exactly two checkpoints were kept"


@pytest.mark.parametrize("how", ["--bare", "--numbered"], ids=["run_config alone", "job_run"])
def test_stopped_training_leaves_run_killed(reached: Settings, how: str) -> None:
    with Jobs(reached) as jobs:
        job_id = jobs.submit(["python", "steps.py", "--steps=1000", "--workers=1", how], SCRIPTS, name="stopped")
        next(line for line in jobs.follow(job_id) if report_in(line))
        jobs.stop(job_id)
        assert jobs.wait(job_id, timeout_s=60).status == "STOPPED"
    assert job_run(job_id).info.status == "KILLED"


@pytest.mark.nightly
def test_worker_that_dies_as_its_group_starts_counts_as_failure(reached: Settings) -> None:
    with Jobs(reached) as jobs:
        job_id = jobs.submit(["python", "dies_at_start.py"], SCRIPTS, name="dies-at-start")
        # Two starts of a group; 100 s beside the tests of the stack.
        assert "A worker died while its group started" in succeeded(jobs, job_id, 480)


def test_job_of_readme_is_one_run_with_its_points(reached: Settings, tmp_path: Path) -> None:
    (job,) = re.findall(r"^```python\n(.*?)^```", README.read_text(), flags=re.S | re.M)
    (tmp_path / "train.py").write_text(job)
    with Jobs(reached) as jobs:
        job_id = jobs.submit(["python", "train.py"], tmp_path, name="readme")
        succeeded(jobs, job_id)
    assert points(job_id, "loss") == [(epoch, pytest.approx(0.1 / (epoch + 1))) for epoch in range(5)]
    assert [run.data.params["lr"] for run in runs_of(job_id)] == ["0.1"]
