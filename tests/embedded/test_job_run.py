"""Runs that processes open, rejoin and end, configured by their environment only."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from embedded import CURRENT_TEST, job_run, runs_of
from waiting import wait_for

from mlplatform import contract
from mlplatform.settings.job import Settings
from mlplatform.storage import run_reference
from mlplatform.tracking.metrics import Point, RunSink
from mlplatform.tracking.outbox import Outbox

HANGS = """
import signal, mlplatform
with mlplatform.job_run(experiment="ends", params={"lr": 1}):
    print("open", flush=True)
    signal.pause()
"""
FAILS = """
import mlplatform
with mlplatform.job_run(experiment="ends", params={"lr": 1}):
    raise ValueError("the data is missing")
"""
FAILS_AFTER_RUN_CONFIG = """
import mlplatform
config = mlplatform.run_config("fit", metric="loss", mode="min")
assert config.storage_path == mlplatform.checkpoint_uri()
raise ValueError("the data is missing")
"""
LOSES_MLFLOW = """
import mlflow, mlplatform
with mlplatform.job_run(experiment="ends"):
    mlflow.set_tracking_uri({address!r})
    raise ValueError("the data is missing")
"""
OPENS_ITS_OWN = """
import os, mlflow
from mlplatform.tracking import run as tracking_run
with mlflow.start_run():
    run_id = tracking_run.process_run("fit")
    both = [run_id, tracking_run.process_run("second")]
    mlflow.MlflowClient().log_metric(run_id, "loss", int(os.environ["MLPLATFORM_ATTEMPT"]))
    if os.environ["MLPLATFORM_ATTEMPT"] == "1":
        os._exit(9)
    assert len(set(both)) == 1
"""
HELD = """
import subprocess, sys, mlflow, mlplatform
with mlplatform.job_run(experiment="ends", params={"lr": 1}) as run:
    for inner in (FINISHES, FAILS):
        subprocess.run([sys.executable, "-c", inner])
        print("status", mlflow.get_run(run.info.run_id).info.status, flush=True)
"""
SUCCEEDS = """
import mlflow, mlplatform
with mlplatform.job_run(experiment="elsewhere", params={"lr": 2, "depth": 3}) as run:
    with mlplatform.job_run(params={"depth": 4}):
        mlflow.log_metric("loss", 1.0)
"""


pytestmark = pytest.mark.usefixtures("as_in_jobs")


def start(program: str, job_id: str, **variables: str) -> subprocess.Popen[str]:
    """Start a program as the entry point of a job, which starts warm unless a variable of MLflow or Ray differs."""
    env = {**os.environ, "MLPLATFORM_JOB_ID": job_id, **variables}
    del env[CURRENT_TEST]
    command = ["python", "-c", program]
    return subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=-1, stderr=-1, text=True)


def test_signal_ends_run_as_killed(environment: Settings) -> None:
    running = {number: start(HANGS, f"ended-by-{number}") for number in (signal.SIGTERM, signal.SIGINT)}
    for process in running.values():
        assert process.stdout
        wait_for(lambda process=process: process.stdout.readline(), "the open run")
    for number, process in running.items():
        process.send_signal(number)
    for number, process in running.items():
        process.communicate(timeout=60)
        assert process.returncode != 0
        assert job_run(f"ended-by-{number}").info.status == "KILLED"


def test_failed_run_has_traceback_and_next_attempt_rejoins() -> None:
    from mlflow import artifacts

    failed = start(FAILS, "retried")
    _, output = failed.communicate(timeout=60)
    assert failed.returncode == 1
    assert "the data is missing" in output
    first = job_run("retried")
    assert first.info.status == "FAILED"
    assert "ValueError: the data is missing" in artifacts.load_text(f"{first.info.artifact_uri}/traceback.txt")

    assert start(SUCCEEDS, "retried", MLPLATFORM_ATTEMPT="2").wait(timeout=60) == 0
    second = job_run("retried")
    assert second.info.run_id == first.info.run_id
    assert second.info.experiment_id == first.info.experiment_id, "the run was moved to another experiment"
    assert second.info.status == "FINISHED"
    assert second.data.tags["mlplatform.attempt"] == "2"
    assert second.data.params == {"lr": "1", "depth": "3"}
    assert len(runs_of("retried")) == 1


def test_run_config_opens_and_ends_job_run() -> None:
    from mlflow import artifacts

    failed = start(FAILS_AFTER_RUN_CONFIG, "without-job-run")
    _, output = failed.communicate(timeout=60)
    assert output.count("ValueError: the data is missing") == 1
    run = job_run("without-job-run")
    assert run.info.status == "FAILED"
    assert "the data is missing" in artifacts.load_text(f"{run.info.artifact_uri}/traceback.txt")


def test_training_points_go_to_enclosing_run() -> None:
    for attempt, end in (("1", 9), ("2", 0)):
        program = start(OPENS_ITS_OWN, "own-run", MLPLATFORM_ATTEMPT=attempt)
        _, errors = program.communicate(timeout=60)
        assert program.returncode == end, errors
    runs = runs_of("own-run")
    assert [run.data.metrics.get("loss") for run in runs] == [2.0, None]
    assert [run.info.status for run in runs] == ["FINISHED", "FINISHED"]


def test_rejoining_process_does_not_end_held_run() -> None:
    program = f"FINISHES = {SUCCEEDS!r}\nFAILS = {FAILS!r}\n{HELD}"
    output, errors = start(program, "held").communicate(timeout=120)
    assert re.findall(r"status (\w+)", output) == ["RUNNING", "FAILED"], errors
    run = job_run("held")
    assert run.info.status == "FINISHED", "the process that holds the run did not set its final status"
    assert run.data.params == {"lr": "1", "depth": "3"}


def test_earliest_parent_run_is_job_run() -> None:
    from mlflow import MlflowClient

    client = MlflowClient()
    experiment = client.create_experiment("raced")
    tags = {contract.TAG_JOB: "raced", contract.TAG_ROLE: "job"}
    later, earlier = (client.create_run(experiment, start_time=time, tags=tags) for time in (2000, 1000))
    assert job_run("raced").info.run_id == earlier.info.run_id != later.info.run_id


EXPERIMENT = "rejoined"
"""Of the tests of attempts; other tests check that 'elsewhere' does not exist."""


def attempt(number: int, job_id: str) -> None:
    program = SUCCEEDS.replace("elsewhere", EXPERIMENT)
    assert start(program, job_id, MLPLATFORM_ATTEMPT=str(number)).wait(timeout=60) == 0


def test_first_attempt_rejoins_run_opened_at_same_moment() -> None:
    from mlflow import MlflowClient

    client = MlflowClient()
    experiment = client.get_experiment_by_name(EXPERIMENT)
    tags = {contract.TAG_JOB: "simultaneous", contract.TAG_ROLE: "job"}
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(EXPERIMENT)
    other = client.create_run(experiment_id, start_time=1000, tags=tags)
    attempt(1, "simultaneous")
    assert [run.info.run_id for run in runs_of("simultaneous")] == [other.info.run_id]
    assert client.get_run(other.info.run_id).data.metrics == {"loss": 1.0}


def test_later_attempt_finds_run_by_reference(environment: Settings) -> None:
    from mlflow import MlflowClient

    attempt(1, "referenced")
    (run_id,) = (run.info.run_id for run in runs_of("referenced"))
    stored = run_reference.RunReference(str(environment.tracking_uri), run_id)
    assert run_reference.read("referenced") == stored
    # No search finds it without this tag.
    MlflowClient().delete_tag(run_id, contract.TAG_ROLE)
    attempt(2, "referenced")
    assert [run.info.run_id for run in runs_of("referenced")] == [run_id]


@pytest.mark.parametrize("damage", ["deleted run", "other server", "no JSON"])
def test_outdated_reference_is_replaced_or_ignored(environment: Settings, damage: str) -> None:
    from mlflow import MlflowClient

    job_id = damage.replace(" ", "-").lower()
    attempt(1, job_id)
    (run_id,) = (run.info.run_id for run in runs_of(job_id))
    if damage == "deleted run":
        MlflowClient().delete_run(run_id)
    elif damage == "other server":
        run_reference.write(job_id, run_reference.RunReference("http://other", "0" * 32))
    else:
        (Path(environment.storage) / job_id / run_reference.NAME).write_text("{")
    attempt(2, job_id)
    (rejoined,) = runs_of(job_id)
    assert (rejoined.info.run_id == run_id) == (damage != "deleted run")


def test_mlflow_outage_does_not_hide_job_error(closed_port: int) -> None:
    program = LOSES_MLFLOW.format(address=f"http://127.0.0.1:{closed_port}")
    failed = start(program, "lost", MLFLOW_HTTP_REQUEST_MAX_RETRIES="0")
    _, output = failed.communicate(timeout=60)
    assert failed.returncode == 1
    assert output.strip().endswith("ValueError: the data is missing")


def test_wrong_tracking_address_fails_within_seconds(closed_port: int) -> None:
    address = f"http://127.0.0.1:{closed_port}"
    done = start(SUCCEEDS, "unreachable", MLFLOW_TRACKING_URI=address)
    _, output = done.communicate(timeout=30)
    assert done.returncode == 1
    assert f"UnreachableError: MLflow at {address} (MLFLOW_TRACKING_URI) does not answer" in output


def test_resent_points_arrive_once_and_in_order(environment: Settings, tmp_path: Path) -> None:
    import mlflow

    with mlflow.start_run() as run:
        pass
    first = Outbox(RunSink(run.info.run_id, environment.tracking_uri))
    first.put([Point("loss", 1.0, 0, 1), Point("loss", 0.5, 1, 2)])
    first.put([Point("loss", 0.6, 1, 3), Point("loss", float("nan"), 2, 4)])
    first.close()
    restored = Outbox(RunSink(run.info.run_id, environment.tracking_uri))
    restored.put([Point("loss", 0.7, 1, 5), Point("loss", 0.25, 3, 6), Point("accuracy", 0.9, 0, 7)])
    restored.close()
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")
    assert [(point.step, point.timestamp) for point in history] == [(0, 1), (1, 2), (2, 4), (3, 6)]
    assert history[1].value == 0.5
    assert mlflow.MlflowClient().get_run(run.info.run_id).data.metrics["accuracy"] == 0.9


def test_queueing_metrics_does_not_block_on_server(closed_port: int) -> None:
    writer = Outbox(RunSink("0" * 32, f"http://127.0.0.1:{closed_port}"))
    for step in range(1000):
        writer.put([Point("loss", 1.0, step, step)])
    assert len(writer.pending()) == 1000, "queued points were dropped before the server answered"
    writer.close(timeout_s=0.1)
