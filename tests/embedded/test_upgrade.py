"""The embedded platform in a home of version 0.1.0 that contains an interrupted search."""

import json
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mlplatform.client.jobs import Jobs
from mlplatform.local.platform import LocalPlatform

pytestmark = pytest.mark.nightly

FIXTURES = Path(__file__).parents[1] / "fixtures" / "0.1.0"
JOB = "search-0.1.0"
EPOCHS = 5
RECORDED_HOME = "/srv/ann/" + "0" * 141
"""Home of the platform on which the search was recorded; Ray Tune's pickles contain this path."""


@dataclass(frozen=True)
class Run:
    """MLflow's record of the job or of one of its trials."""

    id: str
    status: str
    ended: int | None
    tags: dict[str, str]
    points: list[tuple[int, float]]
    """Steps and values of the points of `accuracy`."""


@dataclass(frozen=True)
class Restored:
    """The search before and after it was resumed; trials by their quality."""

    storage: Path
    log: str
    parent: str
    before: dict[float, Run]
    after: dict[float, Run]
    job: Run


def recorded_home(home: Path) -> None:
    """Copy the home of 0.1.0, as if it had been recorded in this folder.

    Ray Tune 2.60 restores a search from another folder, but writes its new trials to the recorded one. So this replaces
    the path in the files, both in plain text and in hexadecimal pickles. A pickle contains the length of each string,
    so both paths have the same length.
    """
    assert len(str(home)) == len(RECORDED_HOME)
    shutil.copytree(FIXTURES / "home", home)
    new, old = str(home).encode(), RECORDED_HOME.encode()
    for file in (home / "storage" / JOB / "qualities").iterdir():
        if file.is_file():
            text = file.read_bytes()
            file.write_bytes(text.replace(old, new).replace(old.hex().encode(), new.hex().encode()))
    with sqlite3.connect(home / "mlflow" / "mlflow.db") as database:
        database.executescript((home / "mlflow" / "mlflow.sql").read_text())
    database.close()


def runs(tracking_uri: str) -> tuple[Run, dict[float, Run]]:
    """The job's run, and those of its trials by quality."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri)
    experiment = client.get_experiment_by_name("search")
    assert experiment
    job, trials = [], {}
    for run in client.search_runs([experiment.experiment_id]):
        points = [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, "accuracy")]
        found = Run(run.info.run_id, run.info.status, run.info.end_time, dict(run.data.tags), points)
        if "quality" in run.data.params:
            assert float(run.data.params["quality"]) not in trials, "a trial has two runs"
            trials[float(run.data.params["quality"])] = found
        else:
            job.append(found)
    assert len(job) == 1, "the job has two runs"
    return job[0], trials


@pytest.fixture(scope="module")
def restored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restored]:
    folder = tmp_path_factory.mktemp("recorded")
    home = folder / ("0" * (len(RECORDED_HOME) - len(str(folder)) - 1))
    recorded_home(home)
    platform = LocalPlatform(home)
    try:
        settings = platform.up()
        assert settings.tracking_uri
        with pytest.MonkeyPatch.context() as patch, Jobs(settings) as jobs:
            for name, value in settings.environment().items():
                patch.setenv(name, value)
            parent, before = runs(settings.tracking_uri)
            job_id = jobs.submit(["python", "search.py"], FIXTURES / "search", job_id=JOB)
            ended = jobs.wait(job_id, 180)
            log = jobs.logs(job_id)
            assert ended.status == "SUCCEEDED", log[-4000:]
            job, after = runs(settings.tracking_uri)
        yield Restored(home / "storage" / JOB / "qualities", log, parent.id, before, after, job)
    finally:
        platform.down()


def accuracies(quality: float) -> list[tuple[int, float]]:
    """Points of a trial that reports once per epoch."""
    return [(epoch, pytest.approx(quality * (1 - 0.5 ** (epoch + 1)))) for epoch in range(EPOCHS)]


def test_recorded_search_is_half_finished(restored: Restored) -> None:
    assert {quality: run.status for quality, run in restored.before.items()} == {
        0.5: "FINISHED",
        -1.0: "FAILED",
        0.8: "RUNNING",
    }
    assert [step for step, _ in restored.before[0.8].points] == [0, 1]


def test_restored_job_finishes_its_original_run(restored: Restored) -> None:
    assert (restored.job.id, restored.job.status) == (restored.parent, "FINISHED")


@pytest.mark.parametrize("quality", [0.5, -1.0])
def test_ended_trial_is_not_repeated(restored: Restored, quality: float) -> None:
    assert restored.after[quality] == restored.before[quality]


def test_unfinished_trial_resumes_in_its_run(restored: Restored) -> None:
    run = restored.after[0.8]
    assert (run.id, run.status) == (restored.before[0.8].id, "FINISHED")
    assert run.points == accuracies(0.8)


def test_remaining_trials_become_children_of_same_job(restored: Restored) -> None:
    assert set(restored.after) == {0.5, -1.0, 0.8, 0.1, 2.0}
    assert restored.after[2.0].points == accuracies(2.0)
    ends = {quality: restored.after[quality].tags["mlplatform.trial_end"] for quality in (0.1, 2.0)}
    assert ends == {0.1: "early-stopped", 2.0: "completed"}
    for quality in (0.1, 2.0):
        tags = restored.after[quality].tags
        assert (tags["mlflow.parentRunId"], tags["mlplatform.job_id"]) == (restored.parent, JOB)
        kept = list((restored.storage / tags["mlplatform.trial_id"]).glob("checkpoint_*/state.json"))
        assert len(kept) == min(2, len(restored.after[quality].points))


def test_best_of_old_and_new_trials_is_returned(restored: Restored) -> None:
    line = next(line for line in restored.log.splitlines() if line.startswith("best: "))
    assert json.loads(line.removeprefix("best: ")) == {"run": restored.after[2.0].id, "config": {"quality": 2.0}}
