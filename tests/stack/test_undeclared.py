"""GPUs that a job takes from Ray without having requested them, on the live stack with declared GPUs."""

from __future__ import annotations

import pytest
from host import GRACE_S, SCRIPTS, Stack, wait_for
from persons import Person, submit

from mlplatform.client.jobs import Jobs


@pytest.mark.nightly
@pytest.mark.usefixtures("owning_team")
def test_undeclared_gpus_are_charged_and_return_to_their_team(
    stack: Stack, people: dict[str, Person], jobs: Jobs, started: list[str]
) -> None:
    alice, bob = people["alice"], people["bob"]

    def gpu_seconds() -> float:
        entries = stack.ray.get("/platform/usage", params={"by": "person"}).json()["entries"]
        return sum(entry["gpu_seconds"] for entry in entries if entry["person"] == bob.name)

    greedy = submit(bob, "python", "takes_gpus.py", "2", folder=SCRIPTS)
    started.append(greedy)
    wait_for(lambda: jobs.logs(greedy).count("took GPU") == 2, "both GPUs to be taken", 120)
    wait_for(lambda: "holds 2 GPUs beyond its request" in jobs.logs(greedy), "the measurement", 60)
    wait_for(lambda: gpu_seconds() > 0, "the charge", 30)
    owed = submit(alice, "sleep", "1000", gpus=1)
    started.append(owed)
    wait_for(lambda: jobs.get(owed).status == "RUNNING", "the job within its team's share", GRACE_S + 60)
    (first,) = wait_for(
        lambda: [attempt for attempt in jobs.attempts(greedy) if attempt.outcome], "the end of the attempt"
    )
    assert first.outcome == "PREEMPTED"
    assert owed in (first.reason or "")
    # One GPU is free, but not the two that it held.
    wait_for(lambda: "1 of its 2 workers" in alice.types("mlplatform", "why", greedy), "what it waits for", 60)
    jobs.stop(owed)
    wait_for(lambda: jobs.logs(greedy).count("took GPU") == 4, "both GPUs to be taken again", 120)
