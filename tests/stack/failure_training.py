"""A training that counts steps, the failures injected into it, and the checks afterwards."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from figures import count
from host import SCRIPTS, Stack, run, wait_for

from mlplatform.client.jobs import Jobs, report_in

CHECKPOINT_EVERY = 3
OUTAGE_SECONDS = 60
HEALTHY_SECONDS = 120

_CONNECTED = re.compile(r"^([-\d]+ [:\d]+),\d+\s.*Connecting to existing Ray cluster", re.MULTILINE)
"""The container's clock is UTC."""


def submit(jobs: Jobs, steps: int, pause: float, *more: str) -> str:
    return jobs.submit(["python", "steps.py", f"--steps={steps}", f"--pause={pause}", *more], SCRIPTS, name="steps")


def reports(jobs: Jobs, job_id: str) -> list[dict[str, Any]]:
    return [report for line in jobs.logs(job_id).splitlines() if (report := report_in(line))]


def between_two_checkpoints(jobs: Jobs, job_id: str, at_least: int) -> bool:
    """Return whether a restart would repeat the last step, and more than `at_least` reports have arrived."""
    made = len(reports(jobs, job_id))
    return made > at_least and made % CHECKPOINT_EVERY == 1


def worker_without_driver(stack: Stack, job_id: str) -> str:
    """The worker service whose node runs neither the entry point nor Ray Train's controller."""
    driver = stack.ray.get(f"/api/jobs/{job_id}").json()["driver_node_id"]
    others = [node["hostname"] for node in stack.alive_nodes() if node["raylet"]["nodeId"] != driver]
    return next(name for name in others if name.startswith("ray-worker"))


def crash(stack: Stack, service: str) -> None:
    """Send SIGKILL from the host, so that the restart policy applies, once the container runs."""
    command = ("docker", "inspect", "--format", "{{.State.Pid}}", stack.container(service))
    # 0 while it does not run; for `kill`, that is the group of this process.
    os.kill(wait_for(lambda: int(run(*command).stdout), f"{service} to run"), signal.SIGKILL)


def crash_until_healthy(stack: Stack, service: str) -> None:
    """Kill a service's container, and wait until the one that follows is healthy; prints the seconds."""
    before, begun = container_state(stack, service)[0], time.monotonic()
    crash(stack, service)

    def healthy() -> bool:
        started, health = container_state(stack, service)
        return started != before and health == "healthy"

    wait_for(healthy, f"{service} to be healthy again", HEALTHY_SECONDS)
    seconds = round(time.monotonic() - begun)
    print(f"{service} crashed: healthy after {seconds} s", flush=True)
    count("crashes of containers")
    count("seconds until crashed containers were healthy, in total", seconds)


def container_state(stack: Stack, service: str) -> tuple[str, str]:
    """Start time and health of a service's container."""
    entry = stack.by_service()[service]
    return entry["State"]["StartedAt"], entry["State"]["Health"]["Status"]


@contextmanager
def outage(stack: Stack, service: str) -> Iterator[None]:
    run("docker", "kill", stack.container(service))
    try:
        yield
    finally:
        run("docker", "start", stack.container(service))


@contextmanager
def hurried(stack: Stack, job_id: str) -> Iterator[None]:
    """Let the job take its remaining steps without pauses (see `steps.py`)."""
    file = f"/shared/hurry-{job_id}"
    stack.execute("notebook", "touch", file)
    try:
        yield
    finally:
        stack.execute("notebook", "rm", "--force", file, check=False)


def nothing_is_lost(stack: Stack, jobs: Jobs, job_id: str, steps: int) -> None:
    """Assert that the job has one FINISHED run with exactly one point per step of each metric, in order.

    The job hurries from here on, so call this after the last failure; `steps` bounds only the time until then.
    """
    with hurried(stack, job_id):
        job = jobs.wait(job_id, timeout_s=300)
    assert job.status == "SUCCEEDED", jobs.logs(job_id)[-4000:]
    (found,) = stack.runs_of(job_id)
    assert found["info"]["status"] == "FINISHED"
    for key in ("loss", "rank", "loss_top_"):
        logged = stack.history(found, key)
        points = [(int(point.get("step", 0)), int(point["timestamp"])) for point in logged]
        assert sorted(step for step, _ in points) == list(range(steps)), f"{key}: {points}"
        assert [step for step, _ in sorted(points, key=lambda point: (point[1], point[0]))] == list(range(steps))


def whole_again(stack: Stack) -> None:
    wait_for(stack.whole, "the worker to be back", 300)


def starts(jobs: Jobs, job_id: str) -> list[int]:
    """The step at which the workers resumed, for each of their starts."""
    return list(dict.fromkeys(int(report["start"]) for report in reports(jobs, job_id)))


def step(jobs: Jobs, job_id: str) -> int:
    """The highest step reported; -1 before the first."""
    return max((int(report["step"]) for report in reports(jobs, job_id)), default=-1)


def after_a_checkpoint(jobs: Jobs, job_id: str, more: int) -> None:
    """Wait for `more` steps beyond the current one, with at least one step to replay."""
    least = step(jobs, job_id) + more
    wait_for(lambda: between_two_checkpoints(jobs, job_id, at_least=least), "a report after a checkpoint", 240)


def recovery(jobs: Jobs, job_id: str, do: Callable[[], object], workers_restart: bool = False) -> float:
    """Call `do` and return the seconds until the first step beyond the last one seen before; prints their stages.

    Logs arrive late, so a step counts from when it was made, not from when it is read. If `do` kills the workers
    (`workers_restart`), their next start is awaited too.
    """
    last, before = step(jobs, job_id), len(starts(jobs, job_id))
    begun, moment = time.monotonic(), time.time()
    do()

    def beyond() -> bool:
        started = len(starts(jobs, job_id)) >= before + workers_restart
        return started and any(report["step"] > last for report in made_since(jobs, job_id, moment))

    wait_for(beyond, "a step beyond the last one", 300)
    seconds = time.monotonic() - begun
    print(f"recovered after {seconds:.0f} s; {phases(jobs, job_id, moment, last)}", flush=True)
    return seconds


def made_since(jobs: Jobs, job_id: str, moment: float) -> list[dict[str, Any]]:
    """Reports since the workers' latest start that were made after `moment` (Unix), whenever they reached the log."""
    made = reports(jobs, job_id)
    return [report for report in made if report["timestamp"] > moment and report["start"] == made[-1]["start"]]


def phases(jobs: Jobs, job_id: str, moment: float, last: int) -> str:
    """Stages of a recovery, in seconds after `moment` (Unix), up to a step beyond `last`."""
    marks: dict[str, float] = {}
    for attempt in jobs.attempts(job_id):
        marks["handed to Ray again"] = attempt.created.timestamp()
        if attempt.ended:
            marks["found lost"] = attempt.ended.timestamp()
    for connected in _CONNECTED.findall(jobs.logs(job_id)):
        marks["entry point connected"] = datetime.fromisoformat(f"{connected}+00:00").timestamp()
    made = made_since(jobs, job_id, moment)
    marks["first step"] = min(report["timestamp"] for report in made)
    marks["new step"] = min(report["timestamp"] for report in made if report["step"] > last)
    later = sorted((at, what) for what, at in marks.items() if at > moment)
    return ", ".join(f"{what} {at - moment:.1f} s" for at, what in later)


def wait_until(moment: float) -> None:
    """Sleep until a moment (monotonic clock): the length of an outage is what these tests vary."""
    time.sleep(max(0.0, moment - time.monotonic()))
