"""What a training lives through: a worker that crashes or is stopped; a minute without MLflow, Postgres or MinIO."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from host import Stack, run, wait_for

from mlplatform.jobs import Jobs, report_in
from mlplatform.stack import client_settings

SCRIPTS = Path(__file__).parents[1] / "scripts"
CHECKPOINT_EVERY = 3
OUTAGE_SECONDS = 60


@pytest.fixture
def jobs(stack: Stack) -> Iterator[Jobs]:
    with Jobs(client_settings(stack.root)) as client:
        yield client


def submit(jobs: Jobs, steps: int, pause: float, *more: str) -> str:
    return jobs.submit(["python", "steps.py", f"--steps={steps}", f"--pause={pause}", *more], SCRIPTS, name="steps")


def reports(jobs: Jobs, job_id: str) -> list[dict[str, Any]]:
    return [report for line in jobs.logs(job_id).splitlines() if (report := report_in(line))]


def between_two_checkpoints(jobs: Jobs, job_id: str, at_least: int) -> bool:
    """A checkpoint came after `at_least` reports, and one more report, so that there is something to replay."""
    count = len(reports(jobs, job_id))
    return count > at_least and count % CHECKPOINT_EVERY == 1


def worker_without_driver(stack: Stack, job_id: str) -> str:
    """The worker's service whose node runs neither the entry point nor Ray Train's controller."""
    driver = stack.ray.get(f"/api/jobs/{job_id}").json()["driver_node_id"]
    others = [node["hostname"] for node in stack.alive_nodes() if node["raylet"]["nodeId"] != driver]
    return next(name for name in others if name.startswith("ray-worker"))


def crash(stack: Stack, service: str) -> None:
    """SIGKILL from the host, so that the restart policy acts."""
    pid = int(run("docker", "inspect", "--format", "{{.State.Pid}}", stack.container(service)).stdout)
    os.kill(pid, signal.SIGKILL)


@contextmanager
def outage(stack: Stack, service: str) -> Iterator[None]:
    run("docker", "kill", stack.container(service))
    try:
        yield
    finally:
        run("docker", "start", stack.container(service))


def nothing_is_lost(stack: Stack, jobs: Jobs, job_id: str, steps: int) -> None:
    """One run, FINISHED, with exactly one point a step of each reported metric, in order."""
    job = jobs.wait(job_id, timeout_s=300)
    assert job.status == "SUCCEEDED", jobs.logs(job_id)[-4000:]
    (found,) = stack.runs_of(job_id)
    assert found["info"]["status"] == "FINISHED"
    for key in ("loss", "rank", "loss_top_"):
        answer = stack.mlflow.get(
            "/metrics/get-history", params={"run_id": found["info"]["run_id"], "metric_key": key, "max_results": 1000}
        )
        points = [(int(point.get("step", 0)), int(point["timestamp"])) for point in answer.json()["metrics"]]
        assert sorted(step for step, _ in points) == list(range(steps)), f"{key}: {points}"
        assert [step for step, _ in sorted(points, key=lambda point: (point[1], point[0]))] == list(range(steps))


def whole_again(stack: Stack) -> None:
    wait_for(lambda: not stack.unhealthy() and len(stack.alive_nodes()) == 3, "the worker back", 180)


def starts(jobs: Jobs, job_id: str) -> list[int]:
    """The step at which each start of the workers went on."""
    return list(dict.fromkeys(int(report["start"]) for report in reports(jobs, job_id)))


def test_training_goes_on_from_its_last_checkpoint_when_a_worker_crashes(stack: Stack, jobs: Jobs) -> None:
    steps = 24
    job_id = submit(jobs, steps, 1)
    wait_for(lambda: between_two_checkpoints(jobs, job_id, at_least=4), "a report after a checkpoint", 180)
    crash(stack, worker_without_driver(stack, job_id))
    nothing_is_lost(stack, jobs, job_id, steps)
    _, resumed_at = starts(jobs, job_id)
    assert resumed_at >= CHECKPOINT_EVERY
    assert resumed_at % CHECKPOINT_EVERY == 0
    whole_again(stack)


def test_a_worker_that_is_stopped_asks_for_a_checkpoint_first(stack: Stack, jobs: Jobs) -> None:
    steps = 48
    job_id = submit(jobs, steps, 1)
    wait_for(lambda: between_two_checkpoints(jobs, job_id, at_least=4), "a report after a checkpoint", 180)
    worker = worker_without_driver(stack, job_id)
    run("docker", "stop", stack.container(worker))
    nothing_is_lost(stack, jobs, job_id, steps)
    assert any(report["asked"] for report in reports(jobs, job_id)), "the workers heard of it in time"
    assert len(starts(jobs, job_id)) == 2
    run("docker", "start", stack.container(worker))
    whole_again(stack)


def test_a_minute_without_mlflow_postgres_and_minio_costs_nothing(stack: Stack, jobs: Jobs) -> None:
    """The three overlap: they go 15 s after each other, and each is away for a minute."""
    steps = 60
    job_id = submit(jobs, steps, pause=1)
    wait_for(lambda: len(reports(jobs, job_id)) > CHECKPOINT_EVERY, "a training with a checkpoint", 180)
    away: list[tuple[float, str]] = []
    for service in ("mlflow", "postgres", "minio"):
        run("docker", "kill", stack.container(service))
        away.append((time.monotonic() + OUTAGE_SECONDS, service))
        _wait_until(time.monotonic() + 15)
    for end, service in away:
        _wait_until(end)
        run("docker", "start", stack.container(service))
    nothing_is_lost(stack, jobs, job_id, steps)
    assert starts(jobs, job_id) == [0], "no worker was restarted"


def test_a_rank_that_does_not_report_is_named_and_so_is_a_call_that_does_nothing(jobs: Jobs, stack: Stack) -> None:
    job_id = submit(jobs, 4, 0.2, "--late=45", "--old-api")
    wait_for(lambda: reports(jobs, job_id), "the first report", 180)
    named = "for the following ranks to join the `ray.train.report` call: [1]"
    wait_for(lambda: named in jobs.logs(job_id), "the name of the rank that is waited for", 60)
    assert "ray.air.session.report() does nothing" in jobs.logs(job_id)
    nothing_is_lost(stack, jobs, job_id, 4)


@pytest.mark.soak
@pytest.mark.parametrize("service", ["mlflow", "postgres", "minio"])
def test_an_outage_of_a_minute_costs_nothing(stack: Stack, jobs: Jobs, service: str) -> None:
    steps = 40
    job_id = submit(jobs, steps, pause=1)
    wait_for(lambda: len(reports(jobs, job_id)) > CHECKPOINT_EVERY, "a training with a checkpoint", 180)
    with outage(stack, service):
        _wait_until(time.monotonic() + OUTAGE_SECONDS)
    nothing_is_lost(stack, jobs, job_id, steps)
    assert starts(jobs, job_id) == [0], "no worker was restarted"


def _wait_until(moment: float) -> None:
    """The length of an outage is what is tested, so here time itself is waited for."""
    time.sleep(max(0.0, moment - time.monotonic()))
