"""Trainings with Ray's own `RunConfig`, without a name: the next attempt of a job resumes each of them."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from embedded import SCRIPTS, completed

from mlplatform.client.jobs import Jobs
from mlplatform.settings.job import Settings

TITLES = ["first", "second", "given", "no config", "caught"]


def ran(reached: Settings, words: list[str], **options: Any) -> tuple[str, list[dict[str, Any]]]:
    """Submit the script; return the job's id, and what its trainings have printed."""
    with Jobs(reached) as jobs:
        job_id = jobs.submit(["python", "unnamed.py", *words], SCRIPTS, **options)
        log = list(jobs.follow(job_id))
        assert jobs.get(job_id).status == "SUCCEEDED", "\n".join(log[-60:])
    # Ray writes the process's name before lines of its workers.
    lines = (line[line.index('{"title"') :] for line in log if '{"title"' in line)
    return job_id, [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def trained(reached: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Two attempts of a job with five trainings, one of them without any `RunConfig`."""
    storage = tmp_path_factory.mktemp("unnamed")
    job_id, found = ran(reached, [str(storage)], name="unnamed", max_restarts_on_failure=1)
    yield job_id, found
    for path in {training["path"] for training in found}:
        shutil.rmtree(path)
    shutil.rmtree(Path.home() / "ray_results" / job_id, ignore_errors=True)


def test_each_training_of_script_resumes_in_next_attempt(trained: tuple[str, list[dict[str, Any]]]) -> None:
    job_id, found = trained
    expected = [(title, attempt) for attempt in (1, 2) for title in TITLES]
    assert [(training["title"], training["attempt"]) for training in found] == expected
    # The fit that is repeated with the same config resumes at the failed one's checkpoint, as with Ray alone.
    assert [training["start"] for training in found] == [0, 0, 0, 0, 2, 3, 3, 3, 3, 3]
    first, second = found[:5], found[5:]
    assert [training["path"] for training in first] == [training["path"] for training in second]
    ends = {training["title"]: training["path"].rpartition(f"{job_id}/")[2] for training in first}
    assert ends == {"first": "0", "second": "1", "no config": "2", "caught": "3", "given": ends["given"]}
    assert job_id not in ends["given"]


def test_given_name_and_storage_are_kept(trained: tuple[str, list[dict[str, Any]]]) -> None:
    paths = {training["title"]: Path(training["path"]) for training in trained[1]}
    assert paths["given"].name == "given"
    assert paths["no config"].parents[1] == Path.home() / "ray_results"
    assert paths["given"].parent == paths["first"].parents[1]


def test_trials_of_search_share_no_name(reached: Settings, tmp_path: Path) -> None:
    job_id, found = ran(reached, ["--search", str(tmp_path)], name="unnamed-search")
    assert {training["title"] for training in found} == {"trial 0", "trial 1", "trial 0 again", "trial 1 again"}
    assert [training["start"] for training in found] == [0] * 4
    names = {training["title"]: Path(training["path"]).relative_to(tmp_path / job_id).name for training in found}
    assert len(set(names.values())) == 4
    for number in (0, 1):
        trial, _, index = names[f"trial {number}"].rpartition("-")
        assert index == "0"
        assert names[f"trial {number} again"] == f"{trial}-1"


LOCAL = """
import multiprocessing, threading
from dataclasses import replace
from ray.train import RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from mlplatform.training.names import next_name

def fit(config=None):
    # No workers: it trains in this process.
    trainer = DataParallelTrainer(lambda: None, scaling_config=ScalingConfig(num_workers=0), run_config=config)
    trainer.fit()
    print(trainer.run_config.name, flush=True)

fit()
fit(replace(RunConfig(), storage_path="/tmp"))
used_twice = RunConfig()
fit(used_twice)
fit(used_twice)
fit(RunConfig(name="own"))
fit(RunConfig(name="ray_train_run-2026-11-28_10-00-00"))
for start in (threading.Thread, multiprocessing.get_context("fork").Process):
    other = start(target=fit)
    other.start()
    other.join()
next_name()  # as `mlplatform.run_config()` without a name takes it
fit(RunConfig())
"""


@pytest.mark.usefixtures("clean_environment")
@pytest.mark.parametrize("in_job", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_order_of_jobs_own_process_gives_names(tmp_path: Path, in_job: bool) -> None:
    (tmp_path / "train.py").write_text(LOCAL)
    job = {"MLPLATFORM_JOB_ID": "a-job", "MLPLATFORM_ENTRYPOINT": "cd folder && python train.py"}
    started = completed(sys.executable, "train.py", cwd=tmp_path, env={**os.environ, **(job if in_job else {})})
    assert started.returncode == 0, started.stderr[-2000:]
    found = ["time" if name.startswith("ray_train_run-20") else name for name in started.stdout.split()]
    number = "a-job/{}".format if in_job else lambda _: "time"
    assert found == [*map(number, "0122"), "own", "time", "time", "time", number("4")]
