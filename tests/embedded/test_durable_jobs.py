"""Jobs of the embedded platform survive crashes of its gateway and of Ray; infeasible ones are rejected."""

from __future__ import annotations

from dataclasses import dataclass

import psutil
import pytest
from embedded import JOBS, command, instance_of, processes, runs_of
from waiting import wait_for

from mlplatform.api.jobs import Attempt
from mlplatform.client.jobs import Jobs, report_in
from mlplatform.contract import TAG_ROLE
from mlplatform.local.platform import LocalPlatform
from mlplatform.settings.job import Settings

pytestmark = pytest.mark.nightly

EPOCHS = 60
"""Enough for the training to outlast the start of a gateway on a busy machine."""

KILL_GATEWAY_AFTER, KILL_RAY_AFTER = 4, 12

HEAD = ("gcs_server", "raylet/raylet", "ray/dashboard/dashboard.py", "ray.scripts.scripts start")


@dataclass
class Survivor:
    """A training during which the gateway was killed, and then the whole Ray head."""

    job_id: str
    status: str
    attempts: list[Attempt]
    log: list[str]
    killed: dict[str, int]
    """Process ids of the killed processes, by name."""


def pid_of(local: LocalPlatform, name: str) -> int:
    process = instance_of(local).process(name)
    assert process
    return process.pid


def kill_gateway(local: LocalPlatform) -> int:
    pid = pid_of(local, "gateway")
    psutil.Process(pid).kill()
    return pid


def kill_ray(local: LocalPlatform) -> int:
    head = [process for process in processes(local) if any(name in command(process) for name in HEAD)]
    assert len(head) >= len(HEAD), [command(process) for process in head]
    for process in head:
        process.kill()
    return pid_of(local, "ray")


@pytest.fixture(scope="module")
def survivor(local: LocalPlatform, reached: Settings) -> Survivor:
    with Jobs(reached) as jobs:
        job_id = jobs.submit(["python", "digits.py", f"--epochs={EPOCHS}"], JOBS, name="survivor")
        log: list[str] = []
        killed: dict[str, int] = {}
        reports = 0
        for line in jobs.follow(job_id):
            log.append(line)
            reports += report_in(line) is not None
            if reports == KILL_GATEWAY_AFTER and "gateway" not in killed:
                killed["gateway"] = kill_gateway(local)
            if reports == KILL_RAY_AFTER and "ray" not in killed:
                killed["ray"] = kill_ray(local)
        return Survivor(job_id, jobs.get(job_id).status, list(jobs.attempts(job_id)), log, killed)


def test_training_succeeds_after_gateway_and_ray_crash(survivor: Survivor) -> None:
    assert set(survivor.killed) == {"gateway", "ray"}
    assert survivor.status == "SUCCEEDED", survivor.log[-30:]
    # The gateway's crash did not cost an attempt.
    assert [attempt.outcome for attempt in survivor.attempts] == ["LOST", "SUCCEEDED"]
    assert any("Attempt 2 continues from its last checkpoint; attempt 1 was lost" in line for line in survivor.log)


def test_restarted_training_resumed_from_checkpoint(survivor: Survivor) -> None:
    epochs = [int(report["epoch"]) for line in survivor.log if (report := report_in(line))]
    assert sorted(set(epochs)) == list(range(EPOCHS))
    # Before the crash, another report may have been made, or the last one's checkpoint not yet stored.
    repeated = len(epochs) - EPOCHS
    assert repeated <= 2, epochs


def test_restarted_training_has_one_run_and_complete_log(survivor: Survivor, environment: Settings) -> None:
    (run,) = [run for run in runs_of(survivor.job_id) if run.data.tags.get(TAG_ROLE) == "job"]
    assert run.info.status == "FINISHED"
    with Jobs(environment) as jobs:
        assert jobs.logs(survivor.job_id) == "".join(f"{line}\n" for line in survivor.log), "followed over both crashes"
    # Both attempts, from the first line to the last.
    assert sum("Running entrypoint" in line for line in survivor.log) == 2
    assert any(line.startswith("Test accuracy") for line in survivor.log)


def test_killed_processes_are_restarted(local: LocalPlatform, survivor: Survivor) -> None:
    assert wait_for(local.status, "the platform to answer")
    running = {process.pid for process in processes(local)}
    for name, killed in survivor.killed.items():
        assert pid_of(local, name) in running - {killed}
