"""Jobs of people who share the live stack: at their limit, idle, and with more memory than their part of a GPU."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gpu_jobs import holding_gpu
from host import CHECKOUT, GRACE_S, SCRIPTS, Stack, run, wait_for
from persons import Person, administer, submit

from mlplatform.client.jobs import Jobs

GIB = 1 << 30


@pytest.mark.nightly
def test_job_at_its_limit_is_resumed_in_its_run(
    stack: Stack, people: dict[str, Person], jobs: Jobs, started: list[str]
) -> None:
    alice, bob = people["alice"], people["bob"]
    with holding_gpu(jobs, 1) as holders:
        wait_for(lambda: jobs.get(holders[0]).status == "RUNNING", "the other GPU to be in use")
        limited = submit(
            bob, "python", "saves_when_asked.py", "--batches=120", gpus=1, folder=SCRIPTS, time_limit="20s"
        )
        started.append(limited)
        wait_for(lambda: "Step 20" in jobs.logs(limited), "the training", 120)
        started.append(submit(alice, "sleep", "5", gpus=1))
        wait_for(lambda: jobs.get(limited).status == "FAILED", "the end at the limit", 60 + GRACE_S)
        assert "reached its limit of 20 s" in jobs.get(limited).message
        before = len(re.findall("Step", jobs.logs(limited)))
        refused = alice.types("mlplatform", "resume", limited)
        assert f"belongs to {bob.name}" in refused
        printed = bob.types("mlplatform", "resume", limited, "--limit", "1h")
        assert f"The job was resumed by {bob.name}: attempt 2 continues from its last checkpoint" in printed
        assert jobs.wait(limited, timeout_s=240).status == "SUCCEEDED", jobs.logs(limited)[-4000:]
    again = [int(step) for step in re.findall(r"Step (\d+)", jobs.logs(limited))][before:]
    assert again[0] > 20, "it did not continue from its checkpoint"
    (found,) = stack.runs_of(limited)
    assert found["info"]["status"] == "FINISHED"
    assert "mlplatform.end_reason" not in {tag["key"] for tag in found["data"]["tags"]}


@pytest.fixture
def measured_gpu(stack: Stack) -> Iterator[Callable[[int, int], None]]:
    """A function that sets load and memory of the GPU of `ray-worker-1`, which a stand-in of the library measures."""
    container = stack.container("ray-worker-1")
    where = "import ray._private.thirdparty.pynvml as library; print(library.__file__)"
    library = stack.execute("ray-worker-1", "python", "-c", where).stdout.strip()

    def use(percent: int, memory: int) -> None:
        stack.write("ray-worker-1", "/tmp/gpu_use.json", json.dumps({"percent": percent, "memory": memory}))

    def node() -> str:
        return next(
            (node["raylet"]["nodeId"] for node in stack.alive_nodes() if node["hostname"] == "ray-worker-1"), ""
        )

    def install(source: Path) -> None:
        former = node()
        run("docker", "cp", str(source), f"{container}:{library}")
        run("docker", "restart", container)
        wait_for(lambda: node() not in ("", former), "the node to join again", 120)

    kept = Path(stack.root) / "pynvml.original.py"
    run("docker", "cp", f"{container}:{library}", str(kept))
    try:
        install(CHECKOUT / "tests/stack/stand_in_nvml.py")
        yield use
    finally:
        install(kept)
        kept.unlink()


@pytest.mark.nightly
def test_idle_gpu_is_reclaimed_and_excess_memory_ends_a_job(
    stack: Stack, people: dict[str, Person], jobs: Jobs, started: list[str], measured_gpu: Callable[[int, int], None]
) -> None:
    alice, bob = people["alice"], people["bob"]
    audio = json.loads(bob.asks("GET", "/platform/people").text)["people"]
    (teams_of_bob,) = [person["teams"] for person in audio if person["name"] == bob.name]
    administer(stack, "teams", "set", *teams_of_bob, "--idle-after", "45s")
    with holding_gpu(jobs, 2) as holders:
        wait_for(lambda: all(jobs.get(job_id).status == "RUNNING" for job_id in holders), "both GPUs to be in use")
        (other,) = [job for job in holders if jobs.attempts(job)[0].node != "ray-worker-1"]
        jobs.stop(next(job for job in holders if job != other))
        idle = submit(bob, "sleep", "1000", gpus=1)
        started.append(idle)
        wait_for(lambda: jobs.get(idle).status == "RUNNING", "bob's job")
        measured_gpu(0, GIB)
        wait_for(lambda: "Its GPUs have done nothing since" in jobs.logs(idle), "the notification", 120)
        borrower = submit(alice, "sleep", "1000", gpus=1)
        started.append(borrower)
        wait_for(lambda: jobs.get(borrower).status == "RUNNING", "the job that takes the idle GPU", GRACE_S + 60)
        assert "The job's GPUs are idle" in (jobs.attempts(idle)[0].leave_why or "")
        wait_for(lambda: "no other job leaves for it until" in jobs.get(idle).message, "the idle job's reason", 60)
        jobs.stop(idle)
        jobs.stop(borrower)
        greedy = submit(alice, "sleep", "1000", gpus=0.5)
        started.append(greedy)
        measured_gpu(90, 30 * GIB)
        wait_for(lambda: "It is ended unless it uses less" in jobs.logs(greedy), "the warning", 90)
        wait_for(lambda: jobs.get(greedy).status == "FAILED", "the end of the job", 2 * GRACE_S + 60)
        assert "more than the 20.0 GiB of the 0.5 GPUs that it requests" in jobs.get(greedy).message
    administer(stack, "teams", "set", *teams_of_bob, "--idle-after", "30m")
