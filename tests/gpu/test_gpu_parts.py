"""Jobs that hold GPUs of this machine, on an embedded platform: memory beyond their part, and GPUs that do nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gpu_host import host, needs
from host import wait_for

from mlplatform.capacity.resources import Resources
from mlplatform.client.connection import Connection
from mlplatform.client.jobs import Jobs
from mlplatform.client.people import log_in
from mlplatform.settings.job import Settings

pytestmark = needs(1)

Record = Callable[[str, object], None]

SCRIPTS = Path(__file__).parent / "scripts"

MEASURED_S = 150
"""Bound for the start of a job and for what is measured of it; Ray's agents list processes every 15 s."""


@pytest.fixture
def shared(reached: Settings) -> Iterator[Jobs]:
    """A client with the platform's own token; what it has submitted is stopped at the end."""
    with Jobs(reached) as jobs:
        before = {job.id for job in jobs.list()}
        yield jobs
        for job in jobs.list():
            if job.id not in before:
                jobs.stop(job.id)
                jobs.wait(job.id, timeout_s=200)


@pytest.fixture
def person(reached: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    """A client of a person whose team lets others have a GPU that does nothing for a minute."""
    monkeypatch.setenv("HOME", str(tmp_path))
    with Connection(reached) as link:
        link.call("POST", "/platform/teams", json={"name": "idlers", "share_gpus": host().gpus, "idle_s": 60})
        code = link.call("POST", "/platform/people", json={"name": "ida", "team": "idlers"}).json()["code"]
    own = reached.model_copy(update={"ray_auth_token_path": tmp_path / "token"})
    log_in(own, code)
    with Jobs(own) as jobs:
        yield jobs


def test_job_that_uses_too_much_gpu_memory_is_ended(shared: Jobs, record_property: Record) -> None:
    # Alone on its GPU: with several jobs on one, whose memory it is can be measured for workers of Ray only.
    greedy = shared.submit(["python", "fill_gpu.py", "0.6"], SCRIPTS, name="fills", resources=Resources(gpus=0.5))
    wait_for(lambda: "It is ended unless it uses less" in shared.logs(greedy), "the warning", MEASURED_S)
    assert shared.get(greedy).status == "RUNNING"
    # Its grace period and the time for a reaction to the warning, 120 s each.
    job = shared.wait(greedy, timeout_s=400)
    assert job.status == "FAILED"
    assert "of the 0.5 GPUs that it requests" in job.message
    record_property("ended", job.message)


def test_gpu_that_does_nothing_goes_to_a_waiting_job(person: Jobs, shared: Jobs, record_property: Record) -> None:
    script = "import time, torch; held = torch.ones(1 << 28, device='cuda'); time.sleep(3600)"
    idle = person.submit(["python", "-c", script], SCRIPTS, name="idles", resources=Resources(gpus=host().gpus))
    wait_for(lambda: "Its GPUs have done nothing since" in person.logs(idle), "the notification", MEASURED_S)
    waiting = shared.submit(
        ["python", "busy_gpu.py", "40"], SCRIPTS, name="waits", resources=Resources(gpus=1), wait_for_capacity=True
    )
    assert shared.wait(waiting, timeout_s=300).status == "SUCCEEDED", shared.logs(waiting)[-3000:]
    why = person.attempts(idle)[0].leave_why
    assert why
    assert "The job's GPUs are idle" in why
    record_property("asked to leave", why)
