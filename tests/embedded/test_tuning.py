"""Searches on a real Ray and MLflow: crashed and resumed, stopped, and with several workers per trial."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import pytest
from embedded import SCRIPTS, job_run, succeeded
from mlflow.entities import Run
from waiting import wait_for

from mlplatform.client.jobs import ENDED, Jobs, report_in
from mlplatform.local.platform import LocalPlatform
from mlplatform.settings.job import Settings
from mlplatform.tracking import server
from mlplatform.tracking.metrics import Point
from mlplatform.tuning.trial_runs import COMPLETED, EARLY_STOPPED, TrialRuns

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("environment")]

EPOCHS = 6
GATED_EPOCH = 2
TRIALS = 8


def children(job_id: str) -> dict[str, Run]:
    """Runs of a job's trials, by trial id."""
    from mlflow import MlflowClient

    parent = server.find_run(job_id)
    if parent is None:
        return {}
    wanted = f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
    found = MlflowClient().search_runs([parent.info.experiment_id], wanted)
    assert len({run.data.tags["mlplatform.trial_id"] for run in found}) == len(found), "a trial has two runs"
    return {run.data.tags["mlplatform.trial_id"]: run for run in found}


def points(run: Run, key: str) -> list[tuple[int, float]]:
    from mlflow import MlflowClient

    return [(point.step, point.value) for point in MlflowClient().get_metric_history(run.info.run_id, key)]


def is_gated(run: Run) -> bool:
    # A run exists a moment before its parameters do.
    return run.data.params.get("quality") == "0.9"


def half_way(job_id: str) -> dict[str, Run] | None:
    """The trials' runs, once the two waiting trials have reported and all others have ended."""
    runs = children(job_id)
    gated = [run for run in runs.values() if is_gated(run)]
    others = [run for run in runs.values() if not is_gated(run)]
    ended = [run for run in others if run.info.status != "RUNNING"]
    waiting = [run for run in gated if run.data.metrics.get("epoch") == GATED_EPOCH - 1]
    return runs if len(ended) == len(others) == TRIALS - 2 and len(waiting) == 2 else None


def has_ended(jobs: Jobs, job_id: str) -> str | None:
    """The end of a job's log, once the job has ended."""
    return jobs.logs(job_id)[-4000:] if jobs.get(job_id).status in ENDED else None


@dataclass
class Resumed:
    """A search whose driver was killed half-way and restarted by the gateway; `log` is that of attempt 2."""

    job_id: str
    before: dict[str, Run]
    log: str
    starts: dict[str, list[int]]

    @property
    def after(self) -> dict[str, Run]:
        return children(self.job_id)


@pytest.fixture(scope="module")
def jobs(local: LocalPlatform, reached: Settings) -> Iterator[Jobs]:
    with Jobs(reached) as jobs:
        yield jobs


@pytest.fixture(scope="module")
def module_environment(reached: Settings) -> Iterator[None]:
    """Module-scoped `environment`, for a fixture that also reads MLflow."""
    import mlflow

    with pytest.MonkeyPatch.context() as patch:
        for variable, value in reached.environment().items():
            patch.setenv(variable, value)
        mlflow.set_tracking_uri(reached.tracking_uri)
        yield
    mlflow.set_tracking_uri(None)


@pytest.fixture(scope="module")
def resumed(jobs: Jobs, module_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Resumed:
    folder = tmp_path_factory.mktemp("search")
    job_id = jobs.submit(["python", "search.py", str(folder)], SCRIPTS, name="search", max_restarts_on_failure=1)
    before = wait_for(lambda: half_way(job_id) or has_ended(jobs, job_id), "the end of all but two trials")
    assert isinstance(before, dict), before
    psutil.Process(int((folder / "driver").read_text())).kill()
    # Open the gate only after its trials have ended, or one of them would pass it.
    wait_for(lambda: jobs.attempts(job_id)[0].outcome == "FAILED", "the failure of the first attempt")
    (folder / "gate").touch()
    ended = jobs.wait(job_id, 180)
    _, _, log = jobs.logs(job_id).partition("attempt 1 failed")
    assert ended.status == "SUCCEEDED", log[-4000:]
    assert [attempt.outcome for attempt in jobs.attempts(job_id)] == ["FAILED", "SUCCEEDED"]
    starts = defaultdict(list)
    for line in (folder / "starts").read_text().splitlines():
        trial_id, epoch = line.split()
        starts[trial_id].append(int(epoch))
    return Resumed(job_id, before, log, dict(starts))


def test_each_trial_is_child_run_with_parameters_and_metrics(resumed: Resumed) -> None:
    assert len(resumed.after) == TRIALS
    for run in resumed.after.values():
        quality = float(run.data.params["quality"])
        assert run.data.tags["mlplatform.job_id"] == resumed.job_id
        values = [value for _, value in points(run, "accuracy")] if quality > 0 else []
        assert values == pytest.approx([quality * (1 - 0.5 ** (epoch + 1)) for epoch in range(len(values))])
        assert (quality > 0) == bool(values)


def test_trial_end_tag_distinguishes_outcomes(resumed: Resumed) -> None:
    from mlflow import artifacts

    ends = defaultdict(list)
    for run in resumed.after.values():
        ends[run.data.tags["mlplatform.trial_end"], run.info.status].append(run)
    assert set(ends) == {("completed", "FINISHED"), ("early-stopped", "FINISHED"), ("failed", "FAILED")}
    assert {run.data.params["quality"] for run in ends["completed", "FINISHED"]} >= {"0.9"}
    assert all(len(points(run, "accuracy")) == EPOCHS for run in ends["completed", "FINISHED"])
    assert len(ends["early-stopped", "FINISHED"]) >= 3
    assert all(len(points(run, "accuracy")) < EPOCHS for run in ends["early-stopped", "FINISHED"])
    (failed,) = ends["failed", "FAILED"]
    assert failed.data.params["quality"] == "-1.0"
    text = artifacts.load_text(f"{failed.info.artifact_uri}/traceback.txt")
    assert "ValueError: this quality cannot be trained" in text


def test_finished_trials_did_not_run_again(resumed: Resumed) -> None:
    ended = [trial_id for trial_id, run in resumed.before.items() if run.info.status != "RUNNING"]
    assert {trial_id: resumed.starts[trial_id] for trial_id in ended} == {trial_id: [0] for trial_id in ended}
    for trial_id in ended:
        assert resumed.after[trial_id].info.end_time == resumed.before[trial_id].info.end_time


def test_unfinished_trials_resumed_in_their_runs(resumed: Resumed) -> None:
    waiting = {trial_id: run for trial_id, run in resumed.before.items() if is_gated(run)}
    assert len(waiting) == 2
    for trial_id, run in waiting.items():
        assert resumed.starts[trial_id][0] == 0
        assert 0 < resumed.starts[trial_id][-1] <= GATED_EPOCH, resumed.starts
        after = resumed.after[trial_id]
        assert after.info.run_id == run.info.run_id
        assert after.data.tags["mlplatform.attempt"] == "2"
        assert [step for step, _ in points(after, "accuracy")] == list(range(EPOCHS))


def test_best_trial_is_returned(resumed: Resumed) -> None:
    line = next(line for line in resumed.log.splitlines() if line.startswith("best: "))
    best = json.loads(line.removeprefix("best: "))
    run = next(run for run in resumed.after.values() if run.info.run_id == best["run"])
    assert run.data.params["quality"] == "0.9"
    assert best["config"]["quality"] == 0.9


def test_each_trial_report_is_one_log_line(resumed: Resumed) -> None:
    reports = [report for line in resumed.log.splitlines() if (report := report_in(line))]
    last = [report for report in reports if report["epoch"] == EPOCHS - 1]
    gated = {trial_id for trial_id, run in resumed.before.items() if is_gated(run)}
    assert {report["trial"] for report in last} == gated
    assert all(report["run"] == "qualities" and report["step"] == EPOCHS - 1 for report in last)


def test_stopping_job_ends_trial_runs_as_killed(jobs: Jobs, tmp_path: Path) -> None:
    job_id = jobs.submit(["python", "search.py", str(tmp_path), "--qualities=0.9"], SCRIPTS, name="search-stopped")
    wait_for(lambda: any(is_gated(run) for run in children(job_id).values()), "the start of the trial")
    jobs.stop(job_id)
    jobs.wait(job_id, 60)
    (run,) = children(job_id).values()
    assert run.info.status == "KILLED"
    assert run.data.tags["mlplatform.trial_end"] == "stopped"


def test_multi_worker_trial_reports_to_its_run(jobs: Jobs, reached: Settings, tmp_path: Path) -> None:
    job_id = jobs.submit(["python", "search.py", str(tmp_path), "--workers"], SCRIPTS, name="search-workers")
    log = succeeded(jobs, job_id, 240)
    assert re.search(r"rank 0 starts at epoch [12]", log), "the failed worker loaded no checkpoint"
    ((trial_id, run),) = children(job_id).items()
    lr = float(run.data.params["lr"])
    assert points(run, "accuracy") == [(epoch, pytest.approx(lr * epoch)) for epoch in range(3)]
    assert "accuracy" not in job_run(job_id).data.metrics
    kept = Path(reached.storage, job_id, "tune", trial_id).glob("checkpoint_*/state.json")
    assert sorted(json.loads(state.read_text())["next"] for state in kept) == [2, 3]


def test_redelivered_events_do_not_change_trial_run(environment: Settings) -> None:
    import mlflow

    with mlflow.start_run() as parent:
        pass
    start = partial(TrialRuns.start, trial_id="t0", title="search t0", params={"lr": 0.1, "note[1]": "x" * 10_000})
    report = partial(TrialRuns.report, trial_id="t0", points=[Point("loss", 0.5, 0, 1), Point("loss", 0.25, 1, 2)])
    mark = partial(TrialRuns.mark, trial_id="t0", end=EARLY_STOPPED, error=None)
    finish = partial(TrialRuns.finish, trial_id="t0", end=EARLY_STOPPED, ended=3_000)

    first = TrialRuns(parent.info.run_id, "search", environment.tracking_uri)
    first.open()
    for _ in range(2):
        first.send([start, report, mark, finish])
    run = first.find("t0")
    assert run
    assert (run.info.status, run.info.end_time) == ("FINISHED", 3_000)
    assert run.data.tags["mlplatform.trial_end"] == EARLY_STOPPED
    assert run.data.params["lr"] == "0.1"
    assert run.data.params["note_1_"].startswith("xxx")
    assert points(run, "loss") == [(0, 0.5), (1, 0.25)]

    later = TrialRuns(parent.info.run_id, "search", environment.tracking_uri)
    later.open()
    later.send([start, partial(report, points=[Point("loss", 0.3, 1, 8), Point("loss", 0.125, 2, 9)])])
    continued = later.find("t0")
    assert continued
    assert (continued.info.run_id, continued.info.status) == (run.info.run_id, "RUNNING")
    assert "mlplatform.trial_end" not in continued.data.tags
    assert points(continued, "loss") == [(0, 0.5), (1, 0.25), (2, 0.125)]

    after_a_crash = TrialRuns(parent.info.run_id, "search", environment.tracking_uri)
    after_a_crash.open()
    after_a_crash.send([partial(TrialRuns.settle, trial_id="t0", title="", params={}, points=[], end=COMPLETED)])
    settled = after_a_crash.find("t0")
    assert settled
    assert (settled.info.status, settled.data.tags["mlplatform.trial_end"]) == ("FINISHED", COMPLETED)
