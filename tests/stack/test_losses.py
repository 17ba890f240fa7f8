"""No job is lost: trainings continue after failures of Ray, its nodes or the gateway."""

from __future__ import annotations

import subprocess
import time

import pytest
from failure_training import (
    OUTAGE_SECONDS,
    after_a_checkpoint,
    crash,
    nothing_is_lost,
    recovery,
    reports,
    starts,
    step,
    submit,
    wait_until,
    whole_again,
)
from host import Stack, run, wait_for

from mlplatform.client.jobs import Jobs, report_in

RAY = ("ray-head", "ray-worker-0", "ray-worker-1")
NOTE = "/home/jovyan/work/note.txt"

WITHOUT_DRIVER_S, WITHOUT_RAY_S = 60, 120
"""Bounds of a single recovery on two busy cores; `make bench` judges those of several."""


def driver_node(jobs: Jobs, job_id: str) -> str:
    """The service whose node runs the job's driver."""
    return wait_for(lambda: jobs.attempts(job_id)[-1].node, "the node of the driver", 60)


def listed(stack: Stack, job_id: str) -> dict[str, str]:
    """The only entry of a job in the list of all jobs."""
    (entry,) = [job for job in stack.ray.get("/api/jobs/").json() if job["submission_id"] == job_id]
    return entry


@pytest.mark.nightly
def test_training_survives_gateway_and_head_crashes(stack: Stack, jobs: Jobs) -> None:
    steps = 150
    job_id = submit(jobs, steps, 1)
    after_a_checkpoint(jobs, job_id, more=3)
    took = recovery(jobs, job_id, lambda: crash(stack, "gateway"))
    print(f"gateway crashed: next step seen after {took:.0f} s")
    after_a_checkpoint(jobs, job_id, more=3)
    took = recovery(jobs, job_id, lambda: crash(stack, "ray-head"))
    print(f"head crashed: next step seen after {took:.0f} s")
    wait_for(lambda: len(stack.alive_nodes()) == 3, "the head to be back", 300)
    run("docker", "kill", stack.container("ray-head"))
    wait_until(time.monotonic() + OUTAGE_SECONDS)
    assert listed(stack, job_id)["status"] == "RUNNING", "the list depends on the head"
    run("docker", "start", stack.container("ray-head"))
    # Before the training may hurry to its end: it has to survive the return of the head, too.
    wait_for(lambda: len(stack.alive_nodes()) == 3, "the head to be back again", 300)
    nothing_is_lost(stack, jobs, job_id, steps)
    assert starts(jobs, job_id) == [0], "a worker was restarted"
    assert len(jobs.attempts(job_id)) == 1
    assert [int(report["step"]) for report in reports(jobs, job_id)] == list(range(steps)), "the log is incomplete"
    whole_again(stack)


@pytest.mark.nightly
def test_job_resumes_from_checkpoint_after_driver_loss(stack: Stack, jobs: Jobs) -> None:
    steps = 70
    job_id = submit(jobs, steps, 1)
    follow = ("docker", "exec", stack.container("notebook"), "ray", "job", "logs", "--follow", job_id)
    follower = subprocess.Popen(follow, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    after_a_checkpoint(jobs, job_id, more=4)
    worker = driver_node(jobs, job_id)
    took = recovery(jobs, job_id, lambda: crash(stack, worker), workers_restart=True)
    print(f"worker with the driver crashed: {took:.0f} s")
    assert took < WITHOUT_DRIVER_S
    whole_again(stack)

    # A driver that is suspended until its successor trains, and then resumes.
    after_a_checkpoint(jobs, job_id, more=1)
    sleeper = driver_node(jobs, job_id)
    took = recovery(jobs, job_id, lambda: run("docker", "pause", stack.container(sleeper)), workers_restart=True)
    print(f"worker with the driver paused: {took:.0f} s")
    run("docker", "unpause", stack.container(sleeper))
    whole_again(stack)

    after_a_checkpoint(jobs, job_id, more=1)
    removed = driver_node(jobs, job_id)
    try:
        took = recovery(
            jobs, job_id, lambda: run("docker", "rm", "--force", stack.container(removed)), workers_restart=True
        )
        print(f"worker with the driver removed: {took:.0f} s")
        nothing_is_lost(stack, jobs, job_id, steps)
    finally:
        stack.up()
    resumed = starts(jobs, job_id)
    assert len(resumed) == len(jobs.attempts(job_id)) == 4
    assert resumed == sorted(set(resumed)), "an attempt started without its predecessor's checkpoint"
    assert {attempt.outcome for attempt in jobs.attempts(job_id)[:3]} == {"LOST"}
    assert {int(report["step"]) for report in reports(jobs, job_id)} == set(range(steps)), "the log is incomplete"
    followed, _ = follower.communicate(timeout=60)
    seen = [report for line in followed.splitlines() if (report := report_in(line))]
    assert {int(report["step"]) for report in seen} == set(range(steps)), "a follower of the log missed an attempt"


@pytest.mark.nightly
def test_job_survives_ray_crash_and_stack_restart(stack: Stack, jobs: Jobs) -> None:
    steps = 60
    job_id = submit(jobs, steps, 1)
    after_a_checkpoint(jobs, job_id, more=4)
    took = recovery(jobs, job_id, lambda: [crash(stack, service) for service in RAY], workers_restart=True)
    print(f"all of Ray crashed: {took:.0f} s")
    assert took < WITHOUT_RAY_S
    after_a_checkpoint(jobs, job_id, more=1)
    last = step(jobs, job_id)
    stack.write("notebook", NOTE, "kept")
    stack.make("down")
    stack.up()
    assert stack.execute("notebook", "cat", NOTE).stdout == "kept", "the notebook's folder was lost with its container"
    stack.execute("notebook", "rm", NOTE)
    assert step(jobs, job_id) >= last, "the log was lost with the stack"
    nothing_is_lost(stack, jobs, job_id, steps)
    assert len(starts(jobs, job_id)) == len(jobs.attempts(job_id)) == 3
    assert listed(stack, job_id)["status"] == "SUCCEEDED"


@pytest.mark.nightly
def test_failed_and_stopped_jobs_do_not_restart(stack: Stack, jobs: Jobs) -> None:
    failing = jobs.submit("echo before; echo why >&2; exit 3", "jobs", name="failing")
    stopped = jobs.submit("sleep 600", "jobs", name="stopped")
    job = jobs.wait(failing, timeout_s=120)
    assert (job.status, len(jobs.attempts(failing))) == ("FAILED", 1)
    assert "failed with exit code 3" in job.message
    assert "why" in job.message
    wait_for(lambda: jobs.get(stopped).status == "RUNNING", "the start of the other job", 120)
    assert jobs.stop(stopped)
    assert jobs.wait(stopped, timeout_s=60).status == "STOPPED"
    for service in RAY:
        crash(stack, service)
    crash(stack, "gateway")
    whole_again(stack)
    assert jobs.get(stopped).status == "STOPPED"
    assert len(jobs.attempts(stopped)) == 1
