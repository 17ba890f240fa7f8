"""Failures that a training survives: a crashed or stopped worker; MLflow, Postgres or MinIO down for a minute."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from failure_training import (
    CHECKPOINT_EVERY,
    OUTAGE_SECONDS,
    between_two_checkpoints,
    crash,
    nothing_is_lost,
    reports,
    starts,
    submit,
    wait_until,
    whole_again,
    worker_without_driver,
)
from host import SCRIPTS, Stack, run, wait_for

from mlplatform.client.jobs import Jobs
from mlplatform_stack.services import stores


def test_training_resumes_from_checkpoint_after_worker_crash(stack: Stack, jobs: Jobs) -> None:
    steps = 24
    job_id = submit(jobs, steps, 1)
    wait_for(lambda: between_two_checkpoints(jobs, job_id, at_least=4), "a report after a checkpoint", 180)
    crash(stack, worker_without_driver(stack, job_id))
    nothing_is_lost(stack, jobs, job_id, steps)
    _, resumed_at = starts(jobs, job_id)
    assert resumed_at >= CHECKPOINT_EVERY
    assert resumed_at % CHECKPOINT_EVERY == 0
    whole_again(stack)


@pytest.mark.nightly
def test_stopping_worker_requests_checkpoint_first(stack: Stack, jobs: Jobs) -> None:
    steps = 60
    job_id = submit(jobs, steps, 1)
    wait_for(lambda: between_two_checkpoints(jobs, job_id, at_least=4), "a report after a checkpoint", 180)
    worker = worker_without_driver(stack, job_id)
    run("docker", "stop", stack.container(worker))
    nothing_is_lost(stack, jobs, job_id, steps)
    assert any(report["asked"] for report in reports(jobs, job_id)), "the workers were not notified in time"
    assert len(starts(jobs, job_id)) == 2
    run("docker", "start", stack.container(worker))
    whole_again(stack)


@pytest.mark.nightly
def test_node_lost_right_after_training_loses_nothing(stack: Stack, jobs: Jobs) -> None:
    steps = 6
    job_id = submit(jobs, steps, 0)
    jobs.wait(job_id, timeout_s=180)
    (attempt,) = jobs.attempts(job_id)
    assert attempt.node
    run("docker", "kill", stack.container(attempt.node))
    try:
        nothing_is_lost(stack, jobs, job_id, steps)
        complete = list(range(steps))
        wait_for(lambda: [int(each["step"]) for each in reports(jobs, job_id)] == complete, "the complete log", 60)
    finally:
        run("docker", "start", stack.container(attempt.node))
    whole_again(stack)


@pytest.mark.nightly
def test_overlapping_one_minute_outages_lose_nothing(stack: Stack, jobs: Jobs) -> None:
    """The outages overlap: one starts every 5 s, and each lasts a minute."""
    steps = 90
    job_id = submit(jobs, steps, pause=1)
    wait_for(lambda: len(reports(jobs, job_id)) > CHECKPOINT_EVERY, "a training with a checkpoint", 180)
    outages: list[tuple[float, str]] = []
    for service in ("mlflow", *stores(stack.settings)):
        run("docker", "kill", stack.container(service))
        outages.append((time.monotonic() + OUTAGE_SECONDS, service))
        wait_until(time.monotonic() + 5)
    for end, service in outages:
        wait_until(end)
        run("docker", "start", stack.container(service))
    nothing_is_lost(stack, jobs, job_id, steps)
    assert starts(jobs, job_id) == [0], "a worker was restarted"


@pytest.mark.nightly
def test_log_names_late_rank_and_ineffective_report_call(jobs: Jobs, stack: Stack) -> None:
    # `run_config` lets Ray Train name late ranks after 20 s.
    job_id = submit(jobs, 4, 0.2, "--late=25", "--old-api")
    wait_for(lambda: reports(jobs, job_id), "the first report", 180)
    named = "for the following ranks to join the `ray.train.report` call: [1]"
    wait_for(lambda: named in jobs.logs(job_id), "the warning that names the late rank", 60)
    assert "ray.air.session.report() does nothing" in jobs.logs(job_id)
    nothing_is_lost(stack, jobs, job_id, 4)


@contextmanager
def little_memory(stack: Stack, limit: str) -> Iterator[None]:
    """Lower the memory limit of the workers' containers."""
    workers = [stack.container(f"ray-worker-{number}") for number in range(2)]
    usual = [entry["HostConfig"]["Memory"] for entry in json.loads(run("docker", "inspect", *workers).stdout)]
    run("docker", "update", f"--memory={limit}", f"--memory-swap={limit}", *workers)
    try:
        yield
    finally:
        for worker, memory in zip(workers, usual, strict=True):
            run("docker", "update", f"--memory={memory}", f"--memory-swap={2 * memory}", worker)


@pytest.mark.nightly
def test_only_process_that_uses_all_memory_is_killed(stack: Stack, jobs: Jobs) -> None:
    nodes = {node["raylet"]["nodeId"] for node in stack.alive_nodes()}
    with little_memory(stack, "3g"):
        job_id = jobs.submit(["python", "loaders.py"], SCRIPTS, name="loaders")
        job = jobs.wait(job_id, timeout_s=300)
    assert job.status == "SUCCEEDED", jobs.logs(job_id)[-4000:]
    assert len(starts(jobs, job_id)) == 2, "no group was restarted"
    assert len(stack.ray.get(f"/platform/jobs/{job_id}").json()["attempts"]) == 1, "the driver was killed too"
    assert "DataLoader worker" in jobs.logs(job_id)
    assert {node["raylet"]["nodeId"] for node in stack.alive_nodes()} == nodes, "a node was killed"


def test_many_small_files_upload_concurrently(stack: Stack) -> None:
    """Ray Tune stores its state this way; more files than pyarrow has I/O threads once deadlocked."""
    code = (
        "import pathlib, tempfile, pyarrow.fs as fs; from mlplatform.storage.filesystem import filesystem; "
        "files, path = filesystem('s3://ray/small-files'); folder = tempfile.mkdtemp(); "
        "[(pathlib.Path(folder) / str(number)).write_text('x') for number in range(40)]; "
        "fs.copy_files(folder, path, destination_filesystem=files); "
        "print(len(files.get_file_info(fs.FileSelector(path)))); files.delete_dir(path)"
    )
    assert stack.execute("ray-worker-0", "timeout", "60", "python", "-c", code).stdout.split() == ["40"]
